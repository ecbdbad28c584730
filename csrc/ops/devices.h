// What each device has of kernels, under one face: registrations are templates over these.
#pragma once

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include "cuda/module.h"
#include "cuda/stream.h"
#include "ops/kernels.h"
#include "ops/plan_builder.h"
#include "ops/resident_tables.h"

namespace torchamp {

/// One device's kernels. `usable` says whether this process may use them for tensors on `device`.
struct Cpu {
  explicit Cpu(at::Device) {}
  static bool usable(at::Device) { return !cuda::forced_aten(); }

  void scale(const Plan& plan, float factor, Flags flags) { cpu::scale(plan, factor, flags); }
  void unscale(const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags) {
    cpu::unscale(plan, inv_scale, accumulate, flags);
  }
  void finish_backward(const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags,
                       const Ending& ending) {
    cpu::finish_backward(plan, inv_scale, accumulate, flags, ending);
  }
  void conclude(const Verdict& verdict) { cpu::conclude(verdict); }
  void clip(const Clipping& clipping) { cpu::clip(clipping); }
  void axpby(const Plan& plan, float a, float b, Checked checked, Flags flags) {
    cpu::axpby(plan, a, b, checked, flags);
  }
  void check(const Plan& plan, Flags flags) { cpu::check(plan, flags); }
  void l2norm(const Plan& plan, float* norm, float* per_tensor, Flags flags) {
    cpu::l2norm(plan, norm, per_tensor, flags);
  }
  void copy_cast(const Plan& plan) { cpu::copy_cast(plan); }
  void step(Algorithm algorithm, const Plan& plan, const StepInputs& inputs,
            const std::vector<HyperRow>& rows, uint32*) {
    cpu::step(algorithm, plan, inputs, rows);
  }
  void update_scale(const MovingScale& scale, const float* found_inf) {
    cpu::update_scale(scale, found_inf);
  }
};

struct Cuda {
  explicit Cuda(at::Device device) : guard(device), queue(cuda::current_queue(device.index())) {
    queue.tables = &tables;
  }
  static bool usable(at::Device device) {
    return cuda::backend(device.index()) != cuda::Backend::kAten;
  }

  void scale(const Plan& plan, float factor, Flags flags) {
    cuda::scale(queue, plan, factor, flags);
  }
  void unscale(const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags) {
    cuda::unscale(queue, plan, inv_scale, accumulate, flags);
  }
  void finish_backward(const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags,
                       const Ending& ending) {
    const at::Tensor partials = bytes(ending.norm == nullptr ? 0 : cuda::ending_workspace(plan));
    cuda::unscale(queue, plan, inv_scale, accumulate, flags, ending,
                  static_cast<float*>(partials.data_ptr()));
  }
  void conclude(const Verdict& verdict) { cuda::conclude(queue, verdict); }
  void clip(const Clipping& clipping) { cuda::clip(queue, clipping); }
  void axpby(const Plan& plan, float a, float b, Checked checked, Flags flags) {
    cuda::axpby(queue, plan, a, b, checked, flags);
  }
  void check(const Plan& plan, Flags flags) { cuda::check(queue, plan, flags); }
  void l2norm(const Plan& plan, float* norm, float* per_tensor, Flags flags) {
    const at::Tensor workspace = bytes(cuda::l2norm_workspace(plan));
    cuda::l2norm(queue, plan, norm, per_tensor, flags, workspace.data_ptr());
  }
  void copy_cast(const Plan& plan) { cuda::copy_cast(queue, plan); }
  void step(Algorithm algorithm, const Plan& plan, const StepInputs& inputs,
            const std::vector<HyperRow>& rows, uint32* ticket) {
    cuda::step(queue, algorithm, plan, inputs, rows, ticket);
  }
  void update_scale(const MovingScale& scale, const float* found_inf) {
    cuda::update_scale(queue, scale, found_inf);
  }
  at::Tensor bytes(int64 count) const {
    return at::empty({count}, at::TensorOptions().device(guard.current_device()).dtype(at::kByte));
  }

  c10::DeviceGuard guard;
  cuda::Queue queue;
  ResidentTables tables{queue};
};

/// Any other device: no kernels, so everything is ATen's.
struct Other : Cpu {
  using Cpu::Cpu;
  static bool usable(at::Device) { return false; }
};

template <class Device>
Work gather_for(const char* op, at::Device device, std::initializer_list<NamedList> lists) {
  return gather(op, lists, device, Device::usable(device));
}

}  // namespace torchamp
