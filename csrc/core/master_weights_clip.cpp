// The part of MasterWeights that clips grads.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <torchamp/master_weights.h>
#include <torchamp/ops.h>

#include "ops/clip_factors.h"

namespace torchamp {

using at::Tensor;

/// The grads that are as the optimizer wants them.
std::vector<Tensor> MasterWeights::made_grads() const {
  std::vector<Tensor> grads;
  for (const Tensor& master : master_params_) {
    const Tensor& grad = master.grad();
    if (grad.defined()) grads.push_back(grad.is_sparse() ? grad._values() : grad);
  }
  return grads;
}

Tensor MasterWeights::norm_of_pending() {
  wants_norm_ = true;
  if (!is_pending()) return {};
  check_pending_unchanged();
  return pending_.norm.defined() ? pending_.norm : std::get<0>(ops::l2norm(pending_.grads));
}

Tensor clip_grad_norm(const std::vector<MasterWeights*>& weights, double max_norm) {
  at::NoGradGuard no_grad;
  std::vector<NormPart> parts;
  std::vector<Tensor> made;
  std::vector<MasterWeights*> pending;
  for (MasterWeights* each : weights) {
    const auto grads = each->made_grads();
    made.insert(made.end(), grads.begin(), grads.end());
    const Tensor norm = each->norm_of_pending();
    if (!norm.defined()) continue;
    pending.push_back(each);
    parts.push_back({norm, each->pending_.factor});
  }
  if (!made.empty() || pending.empty()) parts.push_back({std::get<0>(ops::l2norm(made)), {}});
  const ClipFactors factors = clip_factors(parts, max_norm);
  for (size_t i = 0; i < pending.size(); ++i) pending[i]->pending_.factor = factors.clipped[i];
  if (!made.empty()) at::_foreach_mul_(made, factors.coefficient);
  return factors.norm;
}

}  // namespace torchamp
