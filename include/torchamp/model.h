// The model that initialize and cast_for_inference return.
#pragma once

#include <torchamp/amp_state.h>
#include <torchamp/cast.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace torchamp {
namespace detail {

template <class M, class = void>
constexpr bool is_holder = false;  // of a module that `*` gives
template <class M>
constexpr bool is_holder<M, std::void_t<decltype(*std::declval<M&>())>> = true;

}  // namespace detail

/// @addtogroup cast
/// @{

/// A module (a holder such as `torch::nn::Sequential`, a `torch::nn::AnyModule`, or a
/// `std::shared_ptr` to a module) whose call casts its inputs to the opt level's dtype and its
/// outputs to float32: tensors, and the Parts of other values. Other inputs reach the
/// module's forward unchanged, references included. All other members are the module's, through ->.
template <class M>
class Model {
 public:
  /// Called by initialize, not by programs.
  Model(M module, std::shared_ptr<Amp> amp) : module_(std::move(module)), amp_(std::move(amp)) {}

  /// The module's forward on cast inputs, and its outputs cast. Throws RuntimeError if a parameter
  /// changed its dtype since initialize, as after torch::load and `to(kHalf)`.
  template <class... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  /// The same. Give `Return` where the module's own forward takes it: Sequential's and AnyModule's,
  /// whose result is a tensor otherwise.
  template <class Return = void, class... Args>
  auto forward(Args&&... args) {
    if (!amp_->enabled()) return call<Return>(std::forward<Args>(args)...);
    amp_->refresh();
    std::optional<ShieldFromAutocast> shield;
    std::optional<JoinAutocast> joined;
    if (amp_->uses_autocast()) {
      joined.emplace(amp_->open_autocast());
    } else {
      shield.emplace();
    }
    return output(call<Return>(input(std::forward<Args>(args))...));
  }

  /// The module itself, for everything except its forward.
  auto* operator->() { return &**this; }
  /// The same.
  const auto* operator->() const { return &**this; }
  /// The same.
  auto& operator*() { return target(module_); }
  /// The same.
  const auto& operator*() const { return target(module_); }

  /// The holder or pointer that initialize was given.
  M& module() { return module_; }
  /// Its scalers, masters and casts.
  const std::shared_ptr<Amp>& amp() const { return amp_; }

 private:
  /// The object that has the forward.
  template <class Holder>
  static auto& target(Holder& holder) {
    if constexpr (detail::is_holder<M>) {
      return *holder;
    } else {
      return holder;
    }
  }

  template <class Return, class... Args>
  auto call(Args&&... args) {
    if constexpr (std::is_void_v<Return>) {
      return (**this).forward(std::forward<Args>(args)...);
    } else {
      return (**this).template forward<Return>(std::forward<Args>(args)...);
    }
  }

  template <class T>
  decltype(auto) input(T&& value) const {
    if constexpr (holds_tensors<std::decay_t<T>>) {
      std::decay_t<T> given(std::forward<T>(value));
      const auto dtype = amp_->input_type();
      if (dtype) given = cast_floating(std::move(given), *dtype);
      return given;
    } else {
      return std::forward<T>(value);
    }
  }

  template <class T>
  T output(T value) const {
    static_assert(is_understood<T>,
                  "forward returns a type in which torchamp cannot find tensors to cast: "
                  "declare `inline auto amp_members(Output& output) { return "
                  "std::tie(output.a, output.b); }` beside the type, with its members that hold "
                  "tensors (see <torchamp/parts.h>)");
    const auto dtype = amp_->output_type();
    return dtype ? cast_floating(std::move(value), *dtype) : std::move(value);
  }

  M module_;
  std::shared_ptr<Amp> amp_;
};

/// @}

}  // namespace torchamp
