#include "cuda/launch.h"

namespace torchamp::cuda {

int64 l2norm_workspace(const Plan& plan) {
  return units_of(plan, kBlockUnit) * static_cast<int64>(sizeof(float));
}

void l2norm(Queue queue, const Plan& plan, float* norm, float* per_tensor, Flags flags,
            const float* skip, void* workspace) {
  float* const partials = static_cast<float*>(workspace);
  const L2normArguments arguments{partials, per_tensor, flags, skip};
  const auto launch_all = [&](Function function, BlockOf block) {
    int64 units = 0;
    launch_iteration(queue, {function, kThreads, /*backwards=*/false, block}, plan, arguments, {},
                     [&](auto& launched, uint32) {
                       launched.arguments.partials = partials + units;
                       units += launched.units;
                     });
    return units;
  };
  const L2normTotalArguments total{partials, launch_all(Function::kL2norm, BlockOf::kUnit), norm};
  if (per_tensor != nullptr) launch_all(Function::kL2normPerTensor, BlockOf::kTensor);
  launch(queue, {Function::kL2normTotal}, 1, kMaxThreads, &total);
}

}  // namespace torchamp::cuda
