// What the ranks of a distributed program agree on, and the check that they have the same state.
#pragma once

#include <torchamp/agreement.h>
#include <torchamp/detail/export.h>
#include <torchamp/loss_scaler.h>

#include <memory>
#include <utility>

#include "ops/backward_report.h"

namespace torchamp {

struct DynamicScale;

/// Throws ValueError, which names `function`, unless the rank is below the size.
void check_ranks(const char* function, const Agreement& ranks);

/// Gathers every rank's `state`, by one all-reduce of tensors on `device`, for which it waits.
/// Throws RuntimeError, which gives the ranks' states, on all ranks unless all have the same.
TORCHAMP_API void check_same_on_all_ranks(const Agreement& ranks, const ScaleState& state,
                                          at::Device device);

/// Agrees with the other ranks of `scaler` on `found_inf`, float32, which is written; then updates
/// `moved`, unless it is null, and reports, in one launch, as a rank's pass over its grads does
/// where it is alone. Returns the found_inf of all, and the report.
std::pair<at::Tensor, std::shared_ptr<const BackwardReport>> end_on_all_ranks(
    const LossScaler& scaler, const at::Tensor& found_inf, const at::Tensor& loss_scale,
    const DynamicScale* moved, const at::Tensor& loss);

}  // namespace torchamp
