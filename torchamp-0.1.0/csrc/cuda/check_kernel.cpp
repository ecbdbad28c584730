#include "cuda/launch.h"

namespace torchamp::cuda {

void check(Queue queue, const Plan& plan, Flags flags) {
  const Iteration iteration{Kernel::kCheck, tuning().pass_threads, /*backwards=*/false};
  const Pass pass{flags, /*end=*/{}};
  launch_iteration(queue, iteration, plan, CheckArguments{pass}, {}, [](auto&, uint32) {});
}

}  // namespace torchamp::cuda
