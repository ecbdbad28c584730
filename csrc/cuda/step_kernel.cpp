#include "cuda/launch.h"

namespace torchamp::cuda {
namespace {

template <class Rule>
void step(Queue queue, Kernel kernel, const Plan& plan, const StepInputs& inputs, const Rows& rows,
          uint32* ticket) {
  const Iteration iteration{kernel, tuning().step_threads, tuning().walks_backwards != 0};
  launch_iteration(queue, iteration, plan, StepArguments<Rule>{inputs, ticket}, rows,
                   [](auto&, uint32) {});
}

}  // namespace

void step(Queue queue, Algorithm algorithm, const Plan& plan, const StepInputs& inputs,
          const Rows& rows, uint32* ticket) {
  switch (algorithm) {
#define TORCHAMP_CASE(Name, name) \
  case Algorithm::k##Name:        \
    return step<Name>(queue, Kernel::kStep##Name, plan, inputs, rows, ticket);
    TORCHAMP_ALGORITHMS(TORCHAMP_CASE)
#undef TORCHAMP_CASE
  }
}

}  // namespace torchamp::cuda
