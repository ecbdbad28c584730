#include <ATen/ops/full_like.h>
#include <torchamp/clip.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "frontend/wrapped.h"

namespace torchamp {
namespace {

using at::Tensor;

void check_unscaled(const char* function, const std::vector<Optimizer>& optimizers) {
  TORCH_CHECK_VALUE(!optimizers.empty(), function, ": expected at least one optimizer, got none");
  for (const Optimizer& optimizer : optimizers) {
    TORCH_CHECK(!wrapped_of(optimizer).state->grads_are_scaled(), function,
                ": expected unscaled grads, got grads still scaled by a scale_loss that is open or "
                "has delay_unscale; clip after the last scale_loss of the step");
  }
}

/// Whether an overflow has dropped the grads of LibTorch's optimizers.
bool skips_step(const std::vector<Optimizer>& optimizers) {
  return std::any_of(optimizers.begin(), optimizers.end(), [](const Optimizer& optimizer) {
    return wrapped_of(optimizer).state->has_refused();
  });
}

/// The grads of each optimizer; the parameters of a disabled one are tracked for this call.
class Clipped {
 public:
  explicit Clipped(const std::vector<Optimizer>& optimizers) {
    for (const Optimizer& optimizer : optimizers) {
      MasterGrads& grads =
          (optimizer.amp()->enabled() ? wrapped_of(optimizer).masters() : track(optimizer)).grads;
      if (std::find(grads_.begin(), grads_.end(), &grads) == grads_.end()) grads_.push_back(&grads);
    }
  }

  const std::vector<MasterGrads*>& grads() const { return grads_; }

 private:
  core::Masters& track(const Optimizer& optimizer) {
    core::Masters& own = own_.emplace_back();
    for (const Tensor& param : optimizer.master_params()) own.track(param);
    return own;
  }

  std::deque<core::Masters> own_;
  std::vector<MasterGrads*> grads_;
};

}  // namespace

Tensor clip_grad_norm_(const std::vector<Optimizer>& optimizers, double max_norm) {
  check_unscaled("clip_grad_norm_", optimizers);
  const Clipped clipped(optimizers);
  const Tensor norm = clip_grad_norm(clipped.grads(), max_norm);
  return skips_step(optimizers) ? at::full_like(norm, INFINITY) : norm;
}

Tensor clip_grad_norm_(const Optimizer& optimizer, double max_norm) {
  return clip_grad_norm_(std::vector<Optimizer>{optimizer}, max_norm);
}

void clip_grad_value_(const std::vector<Optimizer>& optimizers, double clip_value) {
  check_unscaled("clip_grad_value_", optimizers);
  clip_grad_value(Clipped(optimizers).grads(), clip_value);
}

void clip_grad_value_(const Optimizer& optimizer, double clip_value) {
  clip_grad_value_(std::vector<Optimizer>{optimizer}, clip_value);
}

}  // namespace torchamp
