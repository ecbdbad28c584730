#include "cuda/launch.h"

namespace torchamp::cuda {
namespace {

/// Whether some list is rounded stochastically.
template <class Rule>
bool is_compact(const Plan& plan, const StepInputs& inputs) {
  if (inputs.stochastic_rounding) return true;
  for (int64 tensor = 0; tensor < plan.tensors(); ++tensor) {
    for (int state = 0; state < Rule::kStates; ++state) {
      if (plan.dtype(tensor, 2 + state) == DType::kBFloat16) return true;
    }
  }
  return false;
}

template <class Rule>
void step(Queue queue, Function plain, Function compact, const Plan& plan, const StepInputs& inputs,
          const std::vector<HyperRow>& rows, uint32* ticket) {
  const StepArguments<Rule> arguments{inputs, ticket};
  const Function function = is_compact<Rule>(plan, inputs) ? compact : plain;
  // First what the pass before read last, which the cache still has.
  launch_iteration(queue, {function, kThreads, /*backwards=*/true}, plan, arguments, rows,
                   [](auto&, uint32) {});
}

}  // namespace

void step(Queue queue, Algorithm algorithm, const Plan& plan, const StepInputs& inputs,
          const std::vector<HyperRow>& rows, uint32* ticket) {
  switch (algorithm) {
#define TORCHAMP_CASE(Name, name)                                                                 \
  case Algorithm::k##Name:                                                                        \
    return step<Name>(queue, Function::kStep##Name, Function::kStep##Name##Compact, plan, inputs, \
                      rows, ticket);
    TORCHAMP_ALGORITHMS(TORCHAMP_CASE)
#undef TORCHAMP_CASE
  }
}

}  // namespace torchamp::cuda
