#include "clip/clip.h"

#include <torchamp/clip.h>

#include <algorithm>
#include <deque>
#include <memory>

#include "frontend/device_grads.h"
#include "frontend/session.h"

namespace torchamp {
namespace {

using at::Tensor;

void check_some(const char* function, const std::vector<Optimizer>& optimizers) {
  TORCH_CHECK_VALUE(!optimizers.empty(), function, ": expected at least one optimizer, got none");
}

/// The state of each optimizer; the parameters of a disabled one are tracked for this call.
class Clipped {
 public:
  explicit Clipped(const std::vector<Optimizer>& optimizers) {
    for (const Optimizer& optimizer : optimizers) {
      const bool enabled = optimizer.amp()->enabled();
      core::OptimizerState* const state =
          enabled ? wrapped_of(optimizer).state.get() : &track(optimizer);
      if (std::find(states_.begin(), states_.end(), state) == states_.end()) {
        states_.push_back(state);
      }
    }
  }

  const std::vector<core::OptimizerState*>& states() const { return states_; }

 private:
  core::OptimizerState& track(const Optimizer& optimizer) {
    core::OptimizerState& own = own_.emplace_back();
    for (const Tensor& param : params_of(optimizer.wrapped())) own.add("clip", param);
    return own;
  }

  std::deque<core::OptimizerState> own_;
  std::vector<core::OptimizerState*> states_;
};

}  // namespace

Tensor clip_grad_norm_(const std::vector<Optimizer>& optimizers, double max_norm,
                       double norm_type) {
  check_some("clip_grad_norm_", optimizers);
  return core::clip_grad_norm(Clipped(optimizers).states(), max_norm, norm_type);
}

Tensor clip_grad_norm_(const Optimizer& optimizer, double max_norm, double norm_type) {
  return clip_grad_norm_(std::vector<Optimizer>{optimizer}, max_norm, norm_type);
}

void clip_grad_value_(const std::vector<Optimizer>& optimizers, double clip_value) {
  check_some("clip_grad_value_", optimizers);
  core::clip_grad_value(Clipped(optimizers).states(), clip_value);
}

void clip_grad_value_(const Optimizer& optimizer, double clip_value) {
  clip_grad_value_(std::vector<Optimizer>{optimizer}, clip_value);
}

}  // namespace torchamp
