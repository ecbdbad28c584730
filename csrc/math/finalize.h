// The finalization of a backward: the overflow flags of the passes over its grads become its
// found_inf, which updates the loss scale.
#pragma once

#include "math/report.h"
#include "math/types.h"
#include "math/update_scale.h"

namespace torchamp {

/// The inputs and outputs of a finalization, on the device.
struct Finalization {
  Flags flags;                          ///< set by the passes; cleared
  int32 positions = 0;                  ///< of flags.per_tensor
  const float* loss_scale = nullptr;    ///< the scale of the grads
  const float* found_before = nullptr;  ///< counts as an overflow, too; may be null
  const float* loss = nullptr;          ///< scaled; may be null
  float* found_inf = nullptr;
  float* inv_scale = nullptr;  ///< written: 1 / loss_scale
  uint8* per_tensor = nullptr;
  bool adds_per_tensor = false;  ///< to what is in per_tensor
  ScaleUpdate moved;             ///< or nulls
  Report* report = nullptr;      ///< written; in memory that the host sees; may be null
  float* norm = nullptr;         ///< written: of the grads that are only checked; may be null
  uint32* ticket = nullptr;      ///< 0 before and after; not shared; null: no finalization
};

TORCHAMP_MATH void finalize_position(const Finalization& end, int32 i) {
  const uint8 before = end.adds_per_tensor ? end.per_tensor[i] : uint8{0};
  end.per_tensor[i] = before | end.flags.per_tensor[i];
  end.flags.per_tensor[i] = 0;
}

TORCHAMP_MATH float outcome_of(const Finalization& end, bool found) {
  if (!found) return kClean;
  return end.loss != nullptr && is_nonfinite(*end.loss) ? kLossNotFinite : kOverflowed;
}

TORCHAMP_MATH void report_to_host(const Finalization& end, bool found, float loss_scale) {
  if (found) {
    name_positions(*end.report, end.per_tensor, end.positions);
    fence_report();
  }
  publish(*end.report, packed_outcome(outcome_of(end, found), loss_scale));
}

/// Everything except the positions, after those. loss_scale may be the scale that is updated.
TORCHAMP_MATH void finalize_scalars(const Finalization& end) {
  const bool found = *end.flags.found_inf != 0.0f || is_set(end.found_before);
  *end.flags.found_inf = 0.0f;
  *end.found_inf = found ? 1.0f : 0.0f;
  const float scaled_by = *end.loss_scale;
  *end.inv_scale = 1.0f / scaled_by;
  const bool moves = end.moved.loss_scale != nullptr;
  const float loss_scale = moves ? update(end.moved, found) : scaled_by;
  if (end.report != nullptr) report_to_host(end, found, loss_scale);
}

}  // namespace torchamp
