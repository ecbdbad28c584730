#include "cuda/launch.h"

namespace torchamp::cuda {

void axpby(Queue queue, const Plan& plan, float a, float b, Checked checked, Flags flags) {
  const AxpbyArguments arguments{a, b, checked != Checked::kY, checked != Checked::kX, flags};
  launch_warps(queue, Function::kAxpby, plan, arguments);
}

void copy_cast(Queue queue, const Plan& plan) {
  launch_warps(queue, Function::kCopyCast, plan, CopyCastArguments{});
}

}  // namespace torchamp::cuda
