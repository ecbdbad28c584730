// Stage 7: step. The optimizer that initialize returns.
#pragma once

#include <torch/optim/optimizer.h>
#include <torchamp/detail/export.h>

#include <memory>

namespace torchamp {
/// @addtogroup step
/// @{

class Amp;
class MasterWeights;

/// A handle to a LibTorch optimizer that steps master weights and skips the step after an overflow.
/// Cheap to copy. The wrapped optimizer belongs to the user and must outlive it; LibTorch's
/// schedulers take this as a `torch::optim::Optimizer&`.
///
/// Calling step() on the wrapped optimizer works too: after an overflow it finds no gradients, and
/// its new master weights reach the model at the next forward. Only when gradients are accumulated
/// over several backwards must it be this step().
class TORCHAMP_API Optimizer {
 public:
  /// Called by initialize, not by programs.
  Optimizer(std::shared_ptr<Amp> amp, size_t index) : amp_(std::move(amp)), index_(index) {}

  /// Steps, unless a backward since the last step overflowed; then it only drops the grads.
  /// Returns whether it stepped; true if only a GPU knows, because fused optimizers skip there.
  bool step();
  /// Throws if the loss is scaled or there are masters: a closure that runs its own backward would
  /// bypass both.
  at::Tensor step(const torch::optim::Optimizer::LossClosure& closure);
  /// Zeroes the grads of model and masters, or makes them undefined; also clears an
  /// overflow.
  void zero_grad(bool set_to_none = true);
  /// Adds a group and gives its low-precision parameters masters. Throws RuntimeError if one of
  /// them is in a group already.
  void add_param_group(torch::optim::OptimizerParamGroup group);
  /// The wrapped optimizer's groups, which hold the masters.
  std::vector<torch::optim::OptimizerParamGroup>& param_groups();

  /// The optimizer that initialize was given.
  torch::optim::Optimizer& wrapped() const;
  /// The same, for LibTorch's schedulers.
  operator torch::optim::Optimizer&() const { return wrapped(); }

  /// What the optimizer steps: masters, and parameters that have none. Clip the grads of these.
  std::vector<at::Tensor> master_params() const;
  /// The masters' values, and their synchronization with the model.
  MasterWeights& master_weights() const;

  /// Its scalers, masters and casts.
  const std::shared_ptr<Amp>& amp() const { return amp_; }
  /// Its place among the optimizers that initialize was given.
  size_t index() const { return index_; }

 private:
  bool step_fused();
  bool step_or_skip();

  std::shared_ptr<Amp> amp_;
  size_t index_;
};

/// @}

}  // namespace torchamp
