// update_scale: one thread.
#pragma once

#include "cuda/arguments.h"
#include "cuda/device.h"

namespace torchamp::cuda {

TORCHAMP_DEVICE void update_scale(const UpdateScaleArguments& arguments) {
  if (threadIdx.x != 0) return;
  const ScaleState before{*arguments.loss_scale, *arguments.growth_tracker,
                          *arguments.hysteresis_tracker};
  const ScaleState after = updated(before, *arguments.found_inf != 0.0f, arguments.rule);
  *arguments.loss_scale = after.loss_scale;
  *arguments.growth_tracker = after.growth_tracker;
  *arguments.hysteresis_tracker = after.hysteresis_tracker;
}

}  // namespace torchamp::cuda
