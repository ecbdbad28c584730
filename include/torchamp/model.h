// The model that initialize returns.
#pragma once

#include <torchamp/amp_state.h>
#include <torchamp/cast.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace torchamp {
/// @addtogroup cast
/// @{

/// A module (a holder such as `torch::nn::Sequential`, or a `std::shared_ptr` to a module) whose
/// call casts its inputs to the opt level's dtype and its outputs to float32. Everything else is
/// the module's own, through ->.
template <class M>
class Model {
 public:
  /// What initialize does; programs need not.
  Model(M module, std::shared_ptr<Amp> amp) : module_(std::move(module)), amp_(std::move(amp)) {}

  /// The module's forward on cast inputs, and its outputs cast. Throws RuntimeError if a parameter
  /// changed its dtype since initialize, as torch::load and `to(kHalf)` do.
  template <class... Args>
  auto operator()(Args&&... args) {
    if (!amp_->enabled()) return module_->forward(std::forward<Args>(args)...);
    amp_->refresh();
    std::optional<ShieldFromAutocast> shield;
    std::optional<JoinAutocast> joined;
    if (amp_->uses_autocast()) {
      joined.emplace(amp_->open_autocast());
    } else {
      shield.emplace();
    }
    return output(module_->forward(input(std::forward<Args>(args))...));
  }

  /// The same.
  template <class... Args>
  auto forward(Args&&... args) {
    return (*this)(std::forward<Args>(args)...);
  }

  /// The module itself, for everything but its forward.
  auto* operator->() { return &*module_; }
  /// The same.
  const auto* operator->() const { return &*module_; }
  /// The same.
  auto& operator*() { return *module_; }

  /// The holder or pointer that initialize was given.
  M& module() { return module_; }
  /// The scalers, masters and casts behind it.
  const std::shared_ptr<Amp>& amp() const { return amp_; }

 private:
  template <class T>
  std::decay_t<T> input(T&& value) const {
    const auto dtype = amp_->input_type();
    return dtype ? cast_floating(value, *dtype) : std::forward<T>(value);
  }

  template <class T>
  T output(T value) const {
    const auto dtype = amp_->output_type();
    return dtype ? cast_floating(value, *dtype) : std::move(value);
  }

  M module_;
  std::shared_ptr<Amp> amp_;
};

/// @}

}  // namespace torchamp
