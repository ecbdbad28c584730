// The report of a backward to the host: the device writes it to memory that both can access.
#pragma once

#include "math/float16.h"

namespace torchamp {

/// The outcome of a backward, as a float, so that ATen can write it, too. The outcome of several is
/// the largest of theirs.
constexpr float kNotArrived = 0.0f;
constexpr float kClean = 1.0f;
constexpr float kOverflowed = 2.0f;
constexpr float kLossNotFinite = 3.0f;  ///< the loss itself was not finite, so no grad can be

/// How many of the positions that were not finite a report names.
constexpr int kNamedPositions = 3;

struct Report {
  uint64 outcome;   ///< one of the above in the low half, the loss scale afterwards in the high
  int32 nonfinite;  ///< after an overflow: how many positions; there before the outcome is
  int32 first[kNamedPositions];
};

TORCHAMP_MATH uint64 packed_outcome(float outcome, float loss_scale) {
  return uint64{float_to_bits(loss_scale)} << 32 | float_to_bits(outcome);
}

TORCHAMP_MATH void name_positions(Report& report, const uint8* per_tensor, int32 positions) {
  int32 found = 0;
  for (int32 i = 0; i < positions; ++i) {
    if (per_tensor[i] == 0) continue;
    if (found < kNamedPositions) report.first[found] = i;
    ++found;
  }
  report.nonfinite = found;
}

/// All eight bytes at once, so a report without names needs no fence.
TORCHAMP_MATH void publish(Report& report, uint64 outcome) {
#if defined(__CUDA_ARCH__)
  *static_cast<volatile uint64*>(&report.outcome) = outcome;
#else
  __atomic_store_n(&report.outcome, outcome, __ATOMIC_RELEASE);
#endif
}

/// Orders writes to the report before later ones.
TORCHAMP_MATH void fence_report() {
#if defined(__CUDA_ARCH__)
  __threadfence_system();
#endif
}

}  // namespace torchamp
