#include "kernels.h"

namespace torchamp::cpu {

void update_scale(float* loss_scale, int32* growth_tracker, int32* hysteresis_tracker,
                  const float* found_inf, const ScaleRule& rule) {
  const ScaleState before{*loss_scale, *growth_tracker, *hysteresis_tracker};
  const ScaleState after = updated(before, *found_inf != 0.0f, rule);
  *loss_scale = after.loss_scale;
  *growth_tracker = after.growth_tracker;
  *hysteresis_tracker = after.hysteresis_tracker;
}

}  // namespace torchamp::cpu
