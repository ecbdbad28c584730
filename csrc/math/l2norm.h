// One element of `l2norm`.
#pragma once

#include "math/macros.h"

namespace torchamp {

/// Of a flag that may be null.
TORCHAMP_MATH bool is_set(const float* flag) {
  return flag != nullptr && *flag != 0.0f;
}

TORCHAMP_MATH float add_square(float sum, float value) {
  return fmaf(value, value, sum);
}

}  // namespace torchamp
