// What the Monitor of either language measures of a step.
#pragma once

#include <torchamp/detail/tools.h>

#include <vector>

namespace torchamp::inspect {

/// float32 [4] on the scale's device: the loss scale, the L2 norm of the unscaled grads, the share
/// of their elements that are 0, and of those that, times the loss scale, are below float16's
/// smallest normal number. NaN without grads; sparse ones do not count.
TORCHAMP_API at::Tensor measure(const at::Tensor& scale,
                                const std::vector<detail::SteppedParam>& params);

}  // namespace torchamp::inspect
