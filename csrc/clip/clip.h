// Between stages 6 and 7: clipping the grads of the next step.
#pragma once

#include <functional>
#include <unordered_set>
#include <vector>

#include "core/optimizer_state.h"

namespace torchamp::core {

/// The ranks among which parameters are distributed; by default none are.
struct RanksOfShards {
  /// The stepped tensors for whose grads another rank counts the norm.
  std::unordered_set<const c10::TensorImpl*> counted_elsewhere;
  /// Makes a float64 scalar the sum over all ranks, in place.
  std::function<void(const at::Tensor&)> all_reduce_sum = {};
};

/// Scales the grads that `states`, each once, step by, so that their total norm_type-norm is at
/// most `max_norm`. Returns the norm before clipping, a float32 scalar on the device, without
/// waiting. The 2-norm of grads that are distributed is that of all `ranks`, which all have to call
/// this. Optimizers that are to skip do not count, unless all are: then the norm is not finite.
/// Throws RuntimeError while grads are scaled.
TORCHAMP_API at::Tensor clip_grad_norm(const std::vector<OptimizerState*>& states, double max_norm,
                                       double norm_type = 2, const RanksOfShards& ranks = {});

/// Clips each element to within ±clip_value. Unscales grads that are kChecked.
TORCHAMP_API void clip_grad_value(const std::vector<OptimizerState*>& states, double clip_value);

}  // namespace torchamp::core
