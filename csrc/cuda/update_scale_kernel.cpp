#include "cuda/arguments.h"
#include "cuda/launch.h"

namespace torchamp::cuda {

void update_scale(Queue queue, const ScaleUpdate& scale, const float* found_inf) {
  UpdateScaleArguments arguments{scale, found_inf};
  launch(queue, {Function::kUpdateScale}, 1, kThreads, &arguments);
}

}  // namespace torchamp::cuda
