// clip: one thread.
#pragma once

#include "cuda/device.h"
#include "math/clip.h"

namespace torchamp::cuda {

TORCHAMP_DEVICE void clip(const Clipping& clipping) {
  if (threadIdx.x == 0) clip_by_norm(clipping);
}

}  // namespace torchamp::cuda
