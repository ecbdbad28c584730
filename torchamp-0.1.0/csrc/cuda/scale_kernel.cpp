#include "cuda/arguments.h"
#include "cuda/launch.h"

namespace torchamp::cuda {

void scale(Queue queue, const Plan& plan, float scale, Flags flags) {
  launch_warps(queue, Kernel::kScale, plan, ScaleArguments{scale, flags});
}

}  // namespace torchamp::cuda
