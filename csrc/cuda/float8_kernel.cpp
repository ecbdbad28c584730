#include "cuda/launch.h"

namespace torchamp::cuda {

void float8_scales(Queue queue, const Plan& plan, Float8 format, int32 count, float* scales,
                   uint32* workspace) {
  const Float8ScalesArguments arguments{workspace, scales, nullptr, count, format};
  int64 left = plan.tensors();
  launch_iteration(queue, {Function::kFloat8Scales, kPassThreads}, plan, arguments, {},
                   [&](auto& launched, uint32) {
                     left -= launched.entries;
                     launched.arguments.ticket = left == 0 ? workspace + count : nullptr;
                   });
}

void float8_cast(Queue queue, const Plan& plan, const std::vector<Matrix>& matrices,
                 const float* scales, Float8 format) {
  const Float8CastArguments arguments{scales, format};
  launch_iteration(queue, {Function::kFloat8Cast, kPassThreads, false, BlockOf::kElement}, plan,
                   arguments, matrices, [](auto&, uint32) {});
}

}  // namespace torchamp::cuda
