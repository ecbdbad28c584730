#include "cuda/arguments.h"
#include "cuda/launch.h"

namespace torchamp::cuda {
namespace {

uint32 blocks_of(const Launch<UnscaleArguments>& table) {
  return (table.units + kWarpsPerBlock - 1) / kWarpsPerBlock;
}

}  // namespace

int64 ending_workspace(const Plan& plan) {
  int64 blocks = 0;
  for_each_launch(plan, UnscaleArguments{},
                  [&](const Launch<UnscaleArguments>& table) { blocks += blocks_of(table); });
  return blocks * static_cast<int64>(sizeof(float));
}

void unscale(Queue queue, const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags,
             const Ending& ending, float* partials) {
  const UnscaleArguments arguments{inv_scale, accumulate, flags, ending, partials};
  int64 tensors = 0;
  uint32 blocks = 0;
  for_each_launch(plan, arguments, [&](Launch<UnscaleArguments>& table) {
    tensors += table.entries;
    table.arguments.ending.ticket = tensors == plan.tensors() ? ending.ticket : nullptr;
    table.arguments.first_block = blocks;
    launch(queue, Kernel::kUnscale, blocks_of(table), &table);
    blocks += blocks_of(table);
  });
}

}  // namespace torchamp::cuda
