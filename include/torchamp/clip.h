// Between stages 6 and 7: clipping the grads that are about to be stepped by.
#pragma once

#include <torchamp/optimizer.h>

#include <vector>

namespace torchamp {
/// @addtogroup step
/// @{

/// Scales the grads that `optimizers` step by so that their norm together is at most `max_norm`,
/// and returns what it was: a float32 scalar on the device, for which nothing waits. Call it
/// between the last scale_loss and the step; before a step that an overflow skips the norm is not
/// finite. Where master grads are not materialized the clipping costs no pass.
///
/// Throws ValueError without optimizers, RuntimeError where grads are still scaled.
TORCHAMP_API at::Tensor clip_grad_norm_(const std::vector<Optimizer>& optimizers, double max_norm);
/// The same for one optimizer.
TORCHAMP_API at::Tensor clip_grad_norm_(const Optimizer& optimizer, double max_norm);

/// Clamps every element of the grads to [-clip_value, clip_value]. Throws as clip_grad_norm_.
TORCHAMP_API void clip_grad_value_(const std::vector<Optimizer>& optimizers, double clip_value);
/// The same for one optimizer.
TORCHAMP_API void clip_grad_value_(const Optimizer& optimizer, double clip_value);

/// @}

}  // namespace torchamp
