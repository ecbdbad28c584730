// The parameters of LibTorch's optimizers, and checks of their grads.
#pragma once

#include <torch/optim/optimizer.h>
#include <torchamp/detail/export.h>

#include <optional>
#include <tuple>
#include <vector>

namespace torchamp {

/// The parameters of all groups, in their order.
std::vector<at::Tensor> params_of(torch::optim::Optimizer& optimizer);

/// What a check has found in the grads on one device: a float32 scalar, and uint8, one element per
/// parameter.
using GradCheck = std::tuple<at::Device, at::Tensor, at::Tensor>;

/// Checks the grads of `params`, once for each device that holds one; given `inv_scale`, multiplies
/// them by it, in place. A sparse grad is its values.
TORCHAMP_API std::vector<GradCheck> check_grads(const std::vector<at::Tensor>& params,
                                                const std::optional<at::Tensor>& inv_scale);

}  // namespace torchamp
