// The grads of an optimizer's parameters, in the form for ops.
#pragma once

#include <torch/optim/optimizer.h>

#include <vector>

namespace torchamp {

/// The parameters of all groups, in their order.
std::vector<at::Tensor> params_of(torch::optim::Optimizer& optimizer);

/// A list as long as `params`: their grads on one device, undefined elsewhere. A sparse grad is
/// listed by its values.
struct DeviceGrads {
  at::Device device;
  std::vector<at::Tensor> grads;
};

/// One for each device that holds a grad.
std::vector<DeviceGrads> grads_by_device(const std::vector<at::Tensor>& params);

}  // namespace torchamp
