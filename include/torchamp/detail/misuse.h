// For functions that only mistakes instantiate, whose static_assert names the remedy.
#pragma once

#include <type_traits>

/// The result refers to this argument: clang warns where it outlives it.
#ifdef __clang__
#define TORCHAMP_LIFETIMEBOUND [[clang::lifetimebound]]
#else
#define TORCHAMP_LIFETIMEBOUND
#endif

/// Compilers warn where the result is dropped; from C++20 on they say why not to.
#if __cplusplus >= 202002L
#define TORCHAMP_NODISCARD(reason) [[nodiscard(reason)]]
#else
#define TORCHAMP_NODISCARD(reason) [[nodiscard]]
#endif

/// A setting of the class Options, of type T, set by a Given: a setter that chains, and a getter.
#define TORCHAMP_SETTING(Options, Given, T, name, default_value) \
 public:                                                         \
  Options& name(Given value) {                                   \
    name##_ = value;                                             \
    return *this;                                                \
  }                                                              \
  T name() const {                                               \
    return name##_;                                              \
  }                                                              \
                                                                 \
 private:                                                        \
  T name##_ = default_value

namespace torchamp::detail {

/// False, in a way that depends on a template's arguments.
template <class...>
constexpr bool never = false;

/// A bool, which a text does not convert to.
struct Flag {
  template <class T>
  Flag(const T& given) {
    constexpr bool is_text = std::is_pointer_v<std::decay_t<T>>;
    static_assert(!is_text, "an option that is on or off takes a bool, not a text");
    if constexpr (!is_text) value = given;  // no second error, of an address that is never null
  }
  operator bool() const { return value; }

  bool value;
};

}  // namespace torchamp::detail
