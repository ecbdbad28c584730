#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <torchamp/detail/master_grads.h>
#include <torchamp/ops.h>

#include "ops/clip_factors.h"

namespace torchamp {

using at::Tensor;

Tensor clip_grad_norm(const std::vector<MasterGrads*>& all, double max_norm) {
  at::NoGradGuard no_grad;
  std::vector<NormPart> parts;
  std::vector<Tensor> materialized;
  std::vector<MasterGrads*> deferred;
  for (MasterGrads* each : all) {
    const auto grads = each->materialized();
    materialized.insert(materialized.end(), grads.begin(), grads.end());
    const Tensor norm = each->norm_of_deferred();
    if (!norm.defined()) continue;
    deferred.push_back(each);
    parts.push_back({norm, each->deferred_factor()});
  }
  if (!materialized.empty() || deferred.empty()) {
    parts.push_back({std::get<0>(ops::l2norm(materialized)), {}});
  }
  const ClipFactors factors = clip_factors(parts, max_norm);
  for (size_t i = 0; i < deferred.size(); ++i) deferred[i]->set_deferred_factor(factors.clipped[i]);
  if (!materialized.empty()) at::_foreach_mul_(materialized, factors.coefficient);
  return factors.norm;
}

void clip_grad_value(const std::vector<MasterGrads*>& all, double clip_value) {
  at::NoGradGuard no_grad;
  for (MasterGrads* each : all) {
    each->materialize();
    for (const Tensor& grad : each->materialized()) grad.clamp_(-clip_value, clip_value);
  }
}

}  // namespace torchamp
