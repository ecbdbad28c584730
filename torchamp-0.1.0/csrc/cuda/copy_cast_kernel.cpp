#include "cuda/arguments.h"
#include "cuda/launch.h"

namespace torchamp::cuda {

void copy_cast(Queue queue, const Plan& plan) {
  launch_warps(queue, Kernel::kCopyCast, plan, CopyCastArguments{});
}

}  // namespace torchamp::cuda
