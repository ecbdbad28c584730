#include "cuda/arguments.h"
#include "cuda/launch.h"

namespace torchamp::cuda {

void step(Queue queue, Algorithm algorithm, const Plan& plan, const StepInputs& inputs,
          uint32* ticket) {
  switch (algorithm) {
#define TORCHAMP_CASE(Name, name) \
  case Algorithm::k##Name:        \
    return launch_warps(queue, Kernel::kStep##Name, plan, StepArguments<Name>{inputs, ticket});
    TORCHAMP_ALGORITHMS(TORCHAMP_CASE)
#undef TORCHAMP_CASE
  }
}

}  // namespace torchamp::cuda
