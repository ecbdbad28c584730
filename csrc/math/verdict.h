// The end of a backward: what the passes over its grads found becomes its verdict, and the loss
// scale moves by it.
#pragma once

#include "math/report.h"
#include "math/types.h"
#include "math/update_scale.h"

namespace torchamp {

/// A dynamic loss scale on the device, and how it moves.
struct MovingScale {
  float* loss_scale = nullptr;
  int32* growth_tracker = nullptr;
  int32* hysteresis_tracker = nullptr;
  ScaleRule rule = {};
};

/// Where a verdict comes from and goes to, on the device.
struct Verdict {
  Flags raised;                         ///< by the passes; cleared
  int32 positions = 0;                  ///< of raised.per_tensor
  const float* scaled_by = nullptr;     ///< the loss scale that the grads bear
  const float* found_before = nullptr;  ///< counts as found, too; may be null
  float* found_inf = nullptr;
  float* inv_scale = nullptr;  ///< gets 1 / scaled_by
  uint8* per_tensor = nullptr;
  bool adds_per_tensor = false;  ///< to what is in per_tensor
  MovingScale moved;             ///< or nulls
  Report* report = nullptr;      ///< gets all of this; in memory that the host sees; may be null
};

/// What the last of a backward's passes over the grads does besides.
struct Ending {
  Verdict verdict;
  float* norm = nullptr;     ///< gets that of the grads that are only checked; null: not wanted
  uint32* ticket = nullptr;  ///< 0 before and after; nobody else's meanwhile
};

/// Returns the loss scale afterwards.
TORCHAMP_MATH float move_scale(const MovingScale& scale, bool found_inf) {
  const ScaleState before{*scale.loss_scale, *scale.growth_tracker, *scale.hysteresis_tracker};
  const ScaleState after = updated(before, found_inf, scale.rule);
  *scale.loss_scale = after.loss_scale;
  *scale.growth_tracker = after.growth_tracker;
  *scale.hysteresis_tracker = after.hysteresis_tracker;
  return after.loss_scale;
}

TORCHAMP_MATH void conclude_position(const Verdict& verdict, int32 i) {
  const uint8 before = verdict.adds_per_tensor ? verdict.per_tensor[i] : uint8{0};
  verdict.per_tensor[i] = before | verdict.raised.per_tensor[i];
  verdict.raised.per_tensor[i] = 0;
}

TORCHAMP_MATH void tell_host(const Verdict& verdict, bool found, float loss_scale) {
  if (found) {
    name_positions(*verdict.report, verdict.per_tensor, verdict.positions);
    fence_report();
  }
  publish(*verdict.report, to_outcome(found, loss_scale));
}

/// Everything but the positions, after those. scaled_by may be the scale that moves.
TORCHAMP_MATH void conclude_scalars(const Verdict& verdict) {
  const bool found = *verdict.raised.found_inf != 0.0f ||
                     (verdict.found_before != nullptr && *verdict.found_before != 0.0f);
  *verdict.raised.found_inf = 0.0f;
  *verdict.found_inf = found ? 1.0f : 0.0f;
  const float scaled_by = *verdict.scaled_by;
  *verdict.inv_scale = 1.0f / scaled_by;
  const bool moves = verdict.moved.loss_scale != nullptr;
  const float loss_scale = moves ? move_scale(verdict.moved, found) : scaled_by;
  if (verdict.report != nullptr) tell_host(verdict, found, loss_scale);
}

}  // namespace torchamp
