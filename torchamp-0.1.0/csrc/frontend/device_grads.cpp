#include "frontend/device_grads.h"

#include <algorithm>

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

std::vector<DeviceGrads> grads_by_device(const std::vector<Tensor>& params) {
  std::vector<DeviceGrads> all;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!params[i].grad().defined()) continue;
    const at::Device device = params[i].grad().device();
    auto found = std::find_if(all.begin(), all.end(),
                              [&](const DeviceGrads& each) { return each.device == device; });
    if (found == all.end()) {
      found = all.insert(found, {device, std::vector<Tensor>(params.size())});
    }
    found->grads[i] = dense_grad(params[i]);
  }
  return all;
}

}  // namespace torchamp
