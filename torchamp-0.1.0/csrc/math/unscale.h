// One element of `unscale`.
#pragma once

#include "math/macros.h"

namespace torchamp {

/// The factor that unscales grads, or their loss scale; on the device.
struct InvScale {
  const float* scalar;
  bool is_loss_scale;
};

TORCHAMP_MATH float factor(const InvScale& inv_scale) {
  return inv_scale.is_loss_scale ? 1.0f / *inv_scale.scalar : *inv_scale.scalar;
}

TORCHAMP_MATH float unscaled(float scaled_grad, float inv_scale) {
  return scaled_grad * inv_scale;
}

/// Adds to the master grad of earlier backwards, rounding once.
TORCHAMP_MATH float unscaled_onto(float scaled_grad, float inv_scale, float master_grad) {
  return fmaf(scaled_grad, inv_scale, master_grad);
}

}  // namespace torchamp
