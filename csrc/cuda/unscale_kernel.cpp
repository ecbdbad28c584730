#include "cuda/launch.h"

namespace torchamp::cuda {
namespace {

Iteration iteration() {
  return {Kernel::kUnscale, tuning().pass_threads, /*backwards=*/false};
}

}  // namespace

int64 ending_workspace(const Plan& plan) {
  const Iteration passes = iteration();
  const int64 units = units_of(plan, warp_unit_for(plan));
  const int64 warps = passes.threads / kWarp;
  const int64 launches = plan.tensors() / Launch<UnscaleArguments>::kCapacity + 1;  // at most
  return (units / warps + launches) * static_cast<int64>(sizeof(float));
}

void unscale(Queue queue, const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags,
             const Ending& ending, float* partials) {
  const UnscaleArguments arguments{inv_scale, accumulate, flags, ending, partials};
  int64 tensors = 0;
  uint32 blocks = 0;
  const auto prepare = [&](auto& launched, uint32 its_blocks) {
    tensors += launched.entries;
    launched.arguments.ending.ticket = tensors == plan.tensors() ? ending.ticket : nullptr;
    launched.arguments.first_block = blocks;
    blocks += its_blocks;
  };
  launch_iteration(queue, iteration(), plan, arguments, {}, prepare);
}

}  // namespace torchamp::cuda
