// update_scale: one thread.
#pragma once

#include "cuda/arguments.h"
#include "cuda/device.h"

namespace torchamp::cuda {

TORCHAMP_DEVICE void update_scale(const UpdateScaleArguments& arguments) {
  if (threadIdx.x == 0) update(arguments.scale, *arguments.found_inf != 0.0f);
}

}  // namespace torchamp::cuda
