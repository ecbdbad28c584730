#include <algorithm>

#include "cuda/arguments.h"
#include "cuda/launch.h"

namespace torchamp::cuda {
namespace {

/// Launches as many threads as the plan has tensors.
void prepare(Queue queue, Kernel kernel, const Plan& plan, const StepInputs& inputs) {
  PrepareStepArguments arguments;
  arguments.inputs = inputs;
  for (int64 first = 0; first < plan.tensors(); first += arguments.count) {
    const int64 left = plan.tensors() - first;
    arguments.count = static_cast<int32>(std::min<int64>(left, PrepareStepArguments::kCapacity));
    std::copy_n(plan.positions.begin() + first, arguments.count, arguments.positions);
    const int blocks = (arguments.count + kThreads - 1) / kThreads;
    launch(queue, kernel, static_cast<uint32>(blocks), &arguments);
  }
}

}  // namespace

void step(Queue queue, Algorithm algorithm, const Plan& plan, const StepInputs& inputs) {
  switch (algorithm) {
#define TORCHAMP_CASE(Name, name)                         \
  case Algorithm::k##Name:                                \
    prepare(queue, Kernel::kPrepare##Name, plan, inputs); \
    return launch_warps(queue, Kernel::kStep##Name, plan, StepArguments<Name>{inputs});
    TORCHAMP_ALGORITHMS(TORCHAMP_CASE)
#undef TORCHAMP_CASE
  }
}

}  // namespace torchamp::cuda
