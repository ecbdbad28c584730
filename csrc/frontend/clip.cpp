#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <torchamp/amp_state.h>
#include <torchamp/clip.h>

#include <algorithm>
#include <cmath>
#include <deque>

namespace torchamp {
namespace {

using at::Tensor;

void check_unscaled(const char* function, const std::vector<Optimizer>& optimizers) {
  TORCH_CHECK_VALUE(!optimizers.empty(), function, ": expected at least one optimizer, got none");
  for (const Optimizer& optimizer : optimizers) {
    const WrappedOptimizer& wrapped = optimizer.amp()->optimizers()[optimizer.index()];
    TORCH_CHECK(!wrapped.state->grads_are_scaled(), function,
                ": expected unscaled grads, got those of a scale_loss that is still open or was "
                "given delay_unscale; clip after the last scale_loss of the step");
  }
}

/// Whether an overflow has taken the grads of LibTorch's optimizers away.
bool skips_step(const std::vector<Optimizer>& optimizers) {
  return std::any_of(optimizers.begin(), optimizers.end(), [](const Optimizer& optimizer) {
    return optimizer.amp()->optimizers()[optimizer.index()].skip;
  });
}

/// The weights of each optimizer; what a disabled one steps is tracked for the occasion.
class Clipped {
 public:
  explicit Clipped(const std::vector<Optimizer>& optimizers) {
    for (const Optimizer& optimizer : optimizers) {
      const bool tracked = optimizer.amp()->enabled();
      MasterWeights* const weights = tracked ? &optimizer.master_weights() : &track(optimizer);
      if (std::find(weights_.begin(), weights_.end(), weights) == weights_.end()) {
        weights_.push_back(weights);
      }
    }
  }

  const std::vector<MasterWeights*>& weights() const { return weights_; }

 private:
  MasterWeights& track(const Optimizer& optimizer) {
    MasterWeights& own = own_.emplace_back();
    for (const Tensor& param : optimizer.master_params()) own.track(param);
    return own;
  }

  std::deque<MasterWeights> own_;
  std::vector<MasterWeights*> weights_;
};

}  // namespace

Tensor clip_grad_norm_(const std::vector<Optimizer>& optimizers, double max_norm) {
  at::NoGradGuard no_grad;
  check_unscaled("clip_grad_norm_", optimizers);
  const Clipped clipped(optimizers);
  const Tensor norm = clip_grad_norm(clipped.weights(), max_norm);
  return skips_step(optimizers) ? at::full_like(norm, INFINITY) : norm;
}

Tensor clip_grad_norm_(const Optimizer& optimizer, double max_norm) {
  return clip_grad_norm_(std::vector<Optimizer>{optimizer}, max_norm);
}

void clip_grad_value_(const std::vector<Optimizer>& optimizers, double clip_value) {
  at::NoGradGuard no_grad;
  check_unscaled("clip_grad_value_", optimizers);
  const Clipped clipped(optimizers);
  for (MasterWeights* weights : clipped.weights()) {
    weights->materialize();
    for (const Tensor& master : weights->master_params()) {
      const Tensor& grad = master.grad();
      if (grad.defined())
        (grad.is_sparse() ? grad._values() : grad).clamp_(-clip_value, clip_value);
    }
  }
}

void clip_grad_value_(const Optimizer& optimizer, double clip_value) {
  clip_grad_value_(std::vector<Optimizer>{optimizer}, clip_value);
}

}  // namespace torchamp
