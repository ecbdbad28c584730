#include "cuda/launch.h"

namespace torchamp::cuda {

int64 l2norm_workspace(const Plan& plan) {
  return units_of(plan, kBlockUnit) * static_cast<int64>(sizeof(float));
}

void l2norm(Queue queue, const Plan& plan, float* norm, float* per_tensor, Flags flags,
            const float* skip, void* workspace) {
  using Parameter = Launch<L2normArguments>;
  L2normTotalArguments total{static_cast<float*>(workspace), 0, norm};
  const L2normArguments arguments{nullptr, per_tensor, flags, skip};
  for_each_table<Parameter>(plan, arguments, kBlockUnit, {}, [&](Parameter& table) {
    table.arguments.partials = static_cast<float*>(workspace) + total.count;
    launch(queue, Kernel::kL2norm, table.units, kThreads, &table);
    if (per_tensor != nullptr) {
      launch(queue, Kernel::kL2normPerTensor, static_cast<uint32>(table.entries), kThreads, &table);
    }
    total.count += table.units;
  });
  launch(queue, Kernel::kL2normTotal, 1, kMaxThreads, &total);
}

}  // namespace torchamp::cuda
