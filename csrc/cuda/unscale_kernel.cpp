#include "cuda/launch.h"

namespace torchamp::cuda {
namespace {

/// Starts launches that store their blocks' sums consecutively; the last one ends the pass.
class Passes {
 public:
  Passes(const Plan& plan, const Finalization& end) : left_(plan.tensors()), end_(end) {}

  template <class Launched>
  void operator()(Launched& launched, uint32 blocks) {
    Pass& pass = launched.arguments.pass;
    left_ -= launched.entries;
    pass.end.ticket = left_ == 0 ? end_.ticket : nullptr;
    pass.first_block = blocks_;
    blocks_ += blocks;
  }

 private:
  int64 left_;
  const Finalization& end_;
  uint32 blocks_ = 0;
};

bool has_master_grads(const Plan& plan) {
  for (int64 tensor = 0; tensor < plan.tensors(); ++tensor) {
    if (plan.address(tensor, 1) != nullptr) return true;
  }
  return false;
}

}  // namespace

int64 finish_backward_workspace(const Plan& plan) {
  const int64 units = units_of(plan, warp_unit_for(plan));
  const int64 warps = kPassThreads / kWarp;
  const int64 launches = plan.tensors() / Launch<UnscaleArguments>::kCapacity + 1;  // at most
  return (units / warps + launches) * static_cast<int64>(sizeof(float));
}

void finish_backward(Queue queue, const Plan& plan, InvScale inv_scale, bool accumulate,
                     Flags flags, const Finalization& end, float* partials) {
  const Pass pass{flags, end, partials};
  if (has_master_grads(plan)) {
    const UnscaleArguments arguments{pass, inv_scale, accumulate};
    launch_iteration(queue, {Function::kUnscale, kPassThreads}, plan, arguments, {},
                     Passes(plan, end));
  } else {
    const CheckArguments arguments{pass};
    launch_iteration(queue, {Function::kCheck, kPassThreads}, plan, arguments, {},
                     Passes(plan, end));
  }
}

void unscale(Queue queue, const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags) {
  finish_backward(queue, plan, inv_scale, accumulate, flags, {}, nullptr);
}

}  // namespace torchamp::cuda
