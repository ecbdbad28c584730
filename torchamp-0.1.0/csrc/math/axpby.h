// One element of `axpby`.
#pragma once

#include "math/macros.h"

namespace torchamp {

/// a·x + b·y, the product b·y rounded first.
TORCHAMP_MATH float axpby(float a, float x, float b, float y) {
  return fmaf(a, x, b * y);
}

}  // namespace torchamp
