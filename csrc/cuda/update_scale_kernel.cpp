#include "cuda/arguments.h"
#include "cuda/launch.h"

namespace torchamp::cuda {

void update_scale(Queue queue, float* loss_scale, int32* growth_tracker, int32* hysteresis_tracker,
                  const float* found_inf, const ScaleRule& rule) {
  UpdateScaleArguments arguments{loss_scale, growth_tracker, hysteresis_tracker, found_inf, rule};
  launch(queue, Kernel::kUpdateScale, 1, &arguments);
}

}  // namespace torchamp::cuda
