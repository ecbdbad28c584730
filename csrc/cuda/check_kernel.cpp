#include "cuda/arguments.h"
#include "cuda/launch.h"

namespace torchamp::cuda {

void check(Queue queue, const Plan& plan, Flags flags) {
  launch_warps(queue, Kernel::kCheck, plan, CheckArguments{flags});
}

}  // namespace torchamp::cuda
