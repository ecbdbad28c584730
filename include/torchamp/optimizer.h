// Stage 7: step. The optimizer that initialize returns.
#pragma once

#include <torch/optim/optimizer.h>
#include <torchamp/detail/export.h>
#include <torchamp/detail/misuse.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace torchamp {
/// @addtogroup step
/// @{

class Amp;

/// A handle to a LibTorch optimizer that steps master weights and skips the step after an overflow.
/// Cheap to copy. The wrapped optimizer must outlive it, unless initialize was given the ownership.
/// It is not a `torch::optim::Optimizer`: code that takes one runs the backward without scale_loss.
/// LibTorch's schedulers take wrapped().
///
/// In a step, the parameters that the wrapped optimizer holds have the contents of their masters,
/// and float32 grads. Step this, not the wrapped optimizer, whose own step() finds 16 bits: the
/// next use of the model or of this throws RuntimeError, or warns where the optimizer's states
/// count no steps.
class TORCHAMP_API Optimizer {
 public:
  /// Called by initialize, not by programs.
  Optimizer(std::shared_ptr<Amp> amp, size_t index) : amp_(std::move(amp)), index_(index) {}
  /// A copy refers to the same optimizer. Moves copy, so that a handle is never empty.
  Optimizer(const Optimizer&) = default;
  /// Copies as the constructor does.
  Optimizer& operator=(const Optimizer&) = default;
  /// Does not compile, like the conversion below.
  template <class T = void>
  Optimizer() {
    static_assert(detail::never<T>,
                  "initialize makes Optimizers: store its result in a std::optional, or in the "
                  "initializer list of a constructor");
  }

  /// Steps, unless a backward since the last step overflowed; then it only drops the grads.
  /// Returns whether it stepped; true if only a GPU knows, because fused optimizers skip there.
  bool step();
  /// Steps after `closure`, which runs the backward in scale_loss, and returns the loss. An
  /// optimizer that calls it several times, LBFGS or one of a program's own class, needs a fixed
  /// loss scale. Returns what it returned first.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure);
  /// Zeroes the grads of model and masters, or makes them undefined; also clears an
  /// overflow.
  void zero_grad(bool set_to_none = true);
  /// Adds a group and gives its low-precision parameters masters. Throws RuntimeError if one of
  /// them is in a group already.
  void add_param_group(torch::optim::OptimizerParamGroup group);
  /// The wrapped optimizer's groups. They hold the model's parameters, and its state() is keyed by
  /// these.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups();

  /// The optimizer that initialize was given: for LibTorch's schedulers.
  torch::optim::Optimizer& wrapped() const;
  /// @cond
  template <class O, class = std::enable_if_t<std::is_same_v<O, torch::optim::Optimizer>>>
  operator O&() const {
    static_assert(detail::never<O>,
                  "a function that takes a torch::optim::Optimizer& would train without "
                  "scale_loss: let it take a torchamp::Optimizer&, or any type; give LibTorch's "
                  "schedulers optimizer.wrapped()");
    return wrapped();
  }
  /// @endcond

  /// The tensors that the optimizer steps: masters, and parameters that have none. From the first
  /// call on, masters show the grads of the next step, float32, like the model's parameters.
  std::vector<at::Tensor> master_params() const;
  /// Its scalers, masters and casts.
  const std::shared_ptr<Amp>& amp() const { return amp_; }
  /// Its place among the optimizers that initialize was given.
  size_t index() const { return index_; }

 private:
  bool step_unless_overflowed();
  at::Tensor step_by_closures(const torch::optim::Optimizer::LossClosure& closure);

  std::shared_ptr<Amp> amp_;
  size_t index_;
};

/// @}

namespace detail {

/// Whether a T is an Optimizer, or becomes several.
template <class T>
constexpr bool are_optimizers =
    std::is_convertible_v<T, Optimizer> || std::is_convertible_v<T, std::vector<Optimizer>>;

}  // namespace detail

}  // namespace torchamp
