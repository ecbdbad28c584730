#include "frontend/device_grads.h"

#include <ATen/ops/zeros.h>
#include <torchamp/ops.h>

#include <unordered_map>

namespace torchamp {

using at::Tensor;

std::vector<Tensor> params_of(torch::optim::Optimizer& optimizer) {
  std::vector<Tensor> params;
  for (const auto& group : optimizer.param_groups()) {
    params.insert(params.end(), group.params().begin(), group.params().end());
  }
  return params;
}

namespace {

/// The grad, or a sparse grad's values. Coalesces 16-bit grads first: their sums
/// may overflow.
Tensor dense_grad(const Tensor& param) {
  Tensor& grad = param.mutable_grad();
  if (!grad.is_sparse()) return grad;
  if (at::isReducedFloatingType(grad.scalar_type())) grad = grad.coalesce();
  return grad._values();
}

}  // namespace

std::vector<GradCheck> check_grads(const std::vector<Tensor>& params,
                                   const std::optional<Tensor>& inv_scale) {
  std::unordered_map<at::Device, std::vector<Tensor>> grads_by_device;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].grad().defined()) continue;
    auto& grads = grads_by_device[params[i].grad().device()];
    grads.resize(params.size());
    grads[i] = dense_grad(params[i]);
  }
  std::vector<GradCheck> checks;
  for (const auto& [device, grads] : grads_by_device) {
    const auto floats = at::TensorOptions().device(device).dtype(at::kFloat);
    const Tensor found_inf = at::zeros({}, floats);
    const Tensor per_param =
        at::zeros({static_cast<int64_t>(grads.size())}, floats.dtype(at::kByte));
    if (inv_scale) {
      const Tensor factor = inv_scale->to(device, /*non_blocking=*/true);
      ops::unscale(grads, grads, factor, found_inf, /*accumulate=*/false, per_param);
    } else {
      ops::check(grads, found_inf, per_param);
    }
    checks.emplace_back(device, found_inf, per_param);
  }
  return checks;
}

}  // namespace torchamp
