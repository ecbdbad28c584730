// Between stages 6 and 7: clipping the grads of the next step.
#pragma once

#include <torchamp/detail/optimizer_state.h>

#include <functional>
#include <vector>

namespace torchamp::core {

using TotalNorm = std::function<at::Tensor(const at::Tensor& own)>;

/// Scales the grads that `states` step by, materialized or deferred, so that their total norm is at
/// most `max_norm`. Returns the norm before clipping, a float32 scalar on the device, without
/// waiting. Optimizers that are to skip do not count, unless all are: then the norm is not finite.
/// `total`, if not null, makes of the norm of these grads that of all, of which other processes
/// have the rest. Throws RuntimeError while grads are scaled.
TORCHAMP_API at::Tensor clip_grad_norm(const std::vector<OptimizerState*>& states, double max_norm,
                                       const TotalNorm& total = nullptr);

/// The same by value: each element to within ±clip_value. Materializes deferred grads.
TORCHAMP_API void clip_grad_value(const std::vector<OptimizerState*>& states, double clip_value);

}  // namespace torchamp::core
