#include "clip/clip.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/nn/utils/clip_grad.h>
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

/// Each once.
std::vector<Tensor> params_of_all(const std::vector<Optimizer>& optimizers) {
  std::vector<Tensor> params;
  for (const Optimizer& optimizer : optimizers) {
    for (const Tensor& param : params_of(optimizer.wrapped())) {
      const bool is_known = std::any_of(params.begin(), params.end(),
                                        [&](const Tensor& each) { return each.is_same(param); });
      if (!is_known) params.push_back(param);
    }
  }
  return params;
}

/// Whether grads and steps are as without torchamp.
bool is_plain(const Optimizer& optimizer) {
  const Session& session = optimizer.amp()->session();
  const Properties& properties = session.properties();
  return !session.enabled() ||
         (properties.opt_level == OptLevel::O0 && properties.loss_scale.fixed == 1.0);
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
  const Clipped clipped(optimizers);
  if (!std::all_of(optimizers.begin(), optimizers.end(), is_plain)) {
    return core::clip_grad_norm(clipped.states(), max_norm, norm_type);
  }
  core::check_clip("clip_grad_norm_", "max_norm", max_norm, clipped.states());
  const std::vector<Tensor> params = params_of_all(optimizers);
  const double norm = torch::nn::utils::clip_grad_norm_(params, max_norm, norm_type);
  const auto options = params.empty() ? at::TensorOptions() : params.front().options();
  return at::scalar_tensor(norm, options.dtype(at::kFloat));
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
