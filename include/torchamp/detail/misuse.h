// For functions that only mistakes instantiate, whose static_assert names the remedy.
#pragma once

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

namespace torchamp::detail {

/// False, in a way that depends on a template's arguments.
template <class...>
constexpr bool never = false;

}  // namespace torchamp::detail
