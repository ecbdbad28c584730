// One element of `l2norm`.
#pragma once

#include "math/macros.h"

namespace torchamp {

TORCHAMP_MATH float add_square(float sum, float value) {
  return fmaf(value, value, sum);
}

}  // namespace torchamp
