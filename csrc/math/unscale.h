// One element of `unscale`.
#pragma once

#include "math/macros.h"

namespace torchamp {

TORCHAMP_MATH float unscaled(float scaled_grad, float inv_scale) {
  return scaled_grad * inv_scale;
}

/// Adds to what earlier backwards left in the master grad, rounding once.
TORCHAMP_MATH float unscaled_onto(float scaled_grad, float inv_scale, float master_grad) {
  return fmaf(scaled_grad, inv_scale, master_grad);
}

}  // namespace torchamp
