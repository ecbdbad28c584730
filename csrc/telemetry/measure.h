// What Python's Monitor tells of a step.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include "core/optimizer_state.h"

namespace torchamp {

/// float32 [4] on the scale's device: the loss scale, the L2 norm of the unscaled grads, the share
/// of their elements that are 0, and of those that, times the loss scale, are below float16's
/// smallest normal number. NaN without grads; sparse ones do not count.
TORCHAMP_API at::Tensor measure(const at::Tensor& scale, const core::OptimizerState& state);

}  // namespace torchamp
