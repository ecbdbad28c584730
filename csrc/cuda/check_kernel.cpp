#include "cuda/launch.h"

namespace torchamp::cuda {

void check(Queue queue, const Plan& plan, Flags flags) {
  const Pass pass{flags, /*end=*/{}};
  launch_iteration(queue, {Function::kCheck, kPassThreads}, plan, CheckArguments{pass}, {},
                   [](auto&, uint32) {});
}

}  // namespace torchamp::cuda
