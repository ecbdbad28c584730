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
  if (!optimizer.amp()->enabled()) return true;
  const Properties& properties = optimizer.amp()->properties();
  return properties.opt_level == OptLevel::O0 && properties.loss_scale.fixed == 1.0;
}

bool are_plain(const std::vector<Optimizer>& optimizers) {
  return std::all_of(optimizers.begin(), optimizers.end(), is_plain);
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

std::vector<core::OptimizerState*> states_of(const std::vector<Optimizer>& optimizers) {
  std::vector<core::OptimizerState*> states;
  for (const Optimizer& optimizer : optimizers) {
    core::OptimizerState* const state = wrapped_of(optimizer).state.get();
    if (std::find(states.begin(), states.end(), state) == states.end()) states.push_back(state);
  }
  return states;
}

}  // namespace

Tensor clip_grad_norm_(const std::vector<Optimizer>& optimizers, double max_norm,
                       double norm_type) {
  check_arguments("clip_grad_norm_", optimizers, "max_norm", max_norm);
  if (!are_plain(optimizers)) {
    return core::clip_grad_norm(states_of(optimizers), max_norm, norm_type);
  }
  const std::vector<Tensor> params = all_params_of(optimizers);
  const double norm = torch::nn::utils::clip_grad_norm_(params, max_norm, norm_type);
  return at::scalar_tensor(norm, params.front().options().dtype(at::kFloat));
}

Tensor clip_grad_norm_(const Optimizer& optimizer, double max_norm, double norm_type) {
  return clip_grad_norm_(std::vector<Optimizer>{optimizer}, max_norm, norm_type);
}

void clip_grad_value_(const std::vector<Optimizer>& optimizers, double clip_value) {
  check_arguments("clip_grad_value_", optimizers, "clip_value", clip_value);
  if (!are_plain(optimizers)) return core::clip_grad_value(states_of(optimizers), clip_value);
  torch::nn::utils::clip_grad_value_(all_params_of(optimizers), clip_value);
}

void clip_grad_value_(const Optimizer& optimizer, double clip_value) {
  clip_grad_value_(std::vector<Optimizer>{optimizer}, clip_value);
}

}  // namespace torchamp
