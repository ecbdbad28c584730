#include "clip/clip.h"

#include <ATen/ops/scalar_tensor.h>
#include <torch/nn/utils/clip_grad.h>
#include <torchamp/clip.h>

#include <algorithm>
#include <unordered_set>

#include "frontend/device_grads.h"
#include "frontend/session.h"

namespace torchamp {
namespace {

using at::Tensor;

void check_arguments(const char* function, const std::vector<Optimizer>& optimizers,
                     const char* argument, double bound) {
  TORCH_CHECK_VALUE(!optimizers.empty(), function, ": expected at least one optimizer, got none");
  TORCH_CHECK_VALUE(bound >= 0, function, ": expected ", argument, " to be at least 0, got ",
                    bound);
}

/// Whether training is the program's own: clipping is LibTorch's there, to the last bit.
bool is_plain(const Optimizer& optimizer) {
  const Properties& properties = optimizer.amp()->properties();
  return !optimizer.amp()->enabled() ||
         (properties.opt_level == OptLevel::O0 && properties.loss_scale.fixed == 1.0);
}

/// Each once.
std::vector<Tensor> all_params_of(const std::vector<Optimizer>& optimizers) {
  std::vector<Tensor> params;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const Optimizer& optimizer : optimizers) {
    for (const Tensor& param : params_of(optimizer.wrapped())) {
      if (seen.insert(param.unsafeGetTensorImpl()).second) params.push_back(param);
    }
  }
  return params;
}

/// Each once; none where amp is not enabled. Throws for handles that were released.
std::vector<core::OptimizerState*> states_of(const char* function,
                                             const std::vector<Optimizer>& optimizers) {
  std::vector<core::OptimizerState*> states;
  const bool enabled = optimizers.front().amp()->enabled();
  for (const Optimizer& optimizer : optimizers) {
    TORCH_CHECK(optimizer.amp()->enabled() == enabled, function,
                ": expected optimizers of one initialize, got one that is enabled and one that is "
                "not");
    core::OptimizerState* const state = wrapped_of(optimizer).state.get();
    const bool is_new = std::find(states.begin(), states.end(), state) == states.end();
    if (enabled && is_new) states.push_back(state);
  }
  return states;
}

}  // namespace

Tensor clip_grad_norm_(const std::vector<Optimizer>& optimizers, double max_norm,
                       double norm_type) {
  check_arguments("clip_grad_norm_", optimizers, "max_norm", max_norm);
  const auto states = states_of("clip_grad_norm_", optimizers);
  if (!std::all_of(optimizers.begin(), optimizers.end(), is_plain)) {
    return core::clip_grad_norm(states, max_norm, norm_type);
  }
  const std::vector<Tensor> params = all_params_of(optimizers);
  const double norm = torch::nn::utils::clip_grad_norm_(params, max_norm, norm_type);
  const auto options = params.empty() ? at::TensorOptions() : params.front().options();
  return at::scalar_tensor(norm, options.dtype(at::kFloat));
}

Tensor clip_grad_norm_(const Optimizer& optimizer, double max_norm, double norm_type) {
  return clip_grad_norm_(std::vector<Optimizer>{optimizer}, max_norm, norm_type);
}

void clip_grad_value_(const std::vector<Optimizer>& optimizers, double clip_value) {
  check_arguments("clip_grad_value_", optimizers, "clip_value", clip_value);
  const auto states = states_of("clip_grad_value_", optimizers);
  if (!states.empty()) return core::clip_grad_value(states, clip_value);
  torch::nn::utils::clip_grad_value_(all_params_of(optimizers), clip_value);
}

void clip_grad_value_(const Optimizer& optimizer, double clip_value) {
  clip_grad_value_(std::vector<Optimizer>{optimizer}, clip_value);
}

}  // namespace torchamp
