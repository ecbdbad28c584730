// Checks that the ranks of a distributed program have the same state.
#pragma once

#include <torchamp/agreement.h>
#include <torchamp/detail/export.h>
#include <torchamp/loss_scaler.h>

namespace torchamp {

/// Throws ValueError, which names `function`, unless the rank is below the size.
void check_ranks(const char* function, const Agreement& ranks);

/// Gathers every rank's `state`, by one all-reduce of tensors on `device`, for which it waits.
/// Throws RuntimeError, which gives the ranks' states, on all ranks unless all have the same.
TORCHAMP_API void check_same_on_all_ranks(const Agreement& ranks, const ScaleState& state,
                                          at::Device device);

}  // namespace torchamp
