#include "cuda/arguments.h"
#include "cuda/launch.h"

namespace torchamp::cuda {

void unscale(Queue queue, const Plan& plan, const float* inv_scale, bool accumulate, Flags flags) {
  launch_warps(queue, Kernel::kUnscale, plan, UnscaleArguments{inv_scale, accumulate, flags});
}

}  // namespace torchamp::cuda
