#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <torchamp/detail/clip.h>

#include <algorithm>

#include "core/unscale_pass.h"
#include "ops/clip_factors.h"

namespace torchamp::core {
namespace {

using at::Tensor;
using ClippedStates = std::vector<OptimizerState*>;

/// The grads that they step by, each once; of sparse ones the values.
std::vector<Tensor> materialized_grads(const ClippedStates& states) {
  TensorSet seen;
  std::vector<Tensor> grads;
  for (const OptimizerState* state : states) {
    for (const Tensor& master : state->weights().master_params()) {
      if (!master.grad().defined() || !state->steps(master)) continue;
      const bool is_new = seen.insert(master.unsafeGetTensorImpl()).second;
      if (is_new) grads.push_back(values_of(master.grad()));
    }
  }
  return grads;
}

}  // namespace

/// Optimizers that share masters do not defer their grads.
Tensor clip_grad_norm(const ClippedStates& states, double max_norm) {
  at::NoGradGuard no_grad;
  for (OptimizerState* state : states) state->check_unscaled("clip_grad_norm_");
  const std::vector<Tensor> materialized = materialized_grads(states);
  std::vector<NormPart> parts;
  std::vector<MasterGrads*> deferred;
  for (const OptimizerState* state : states) {
    const Tensor norm = state->grads().norm_of_deferred();
    if (!norm.defined()) continue;
    deferred.push_back(&state->grads());
    parts.push_back({norm, state->grads().deferred_factor()});
  }
  if (!materialized.empty() || deferred.empty()) {
    parts.push_back({std::get<0>(ops::l2norm(materialized)), {}});
  }
  const ClipFactors factors = clip_factors(parts, max_norm);
  for (size_t i = 0; i < deferred.size(); ++i) deferred[i]->set_deferred_factor(factors.clipped[i]);
  if (!materialized.empty()) at::_foreach_mul_(materialized, factors.coefficient);
  return factors.norm;
}

void clip_grad_value(const ClippedStates& states, double clip_value) {
  at::NoGradGuard no_grad;
  for (OptimizerState* state : states) {
    state->check_unscaled("clip_grad_value_");
    state->grads().materialize();
  }
  for (const Tensor& grad : materialized_grads(states)) grad.clamp_(-clip_value, clip_value);
}

}  // namespace torchamp::core
