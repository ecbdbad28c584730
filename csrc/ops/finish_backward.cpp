#include "ops/finish_backward.h"

#include <ATen/ops/zeros.h>
#include <torchamp/ops.h>

#include "aten/fallback.h"
#include "backends/scale_rule.h"
#include "ops/checks.h"
#include "ops/device_kernels.h"
#include "ops/dispatch.h"
#include "ops/plan_builder.h"

namespace torchamp {
namespace {

using at::Tensor;
using at::TensorList;

const float* read(const Tensor& scalar) {
  return scalar.defined() ? scalar.const_data_ptr<float>() : nullptr;
}

template <class T>
T* pointer(const Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

Flags flags_of(const Tensor& overflow_flags) {
  uint8* const bytes = overflow_flags.mutable_data_ptr<uint8>();
  return {reinterpret_cast<float*>(bytes) + 1, bytes + kFlagsHeader};
}

aten::FlagTensors flag_tensors(const Tensor& overflow_flags) {
  const Tensor header = overflow_flags.slice(0, 0, kFlagsHeader).view(at::kFloat);
  return {header.slice(0, 1, 2), overflow_flags.slice(0, kFlagsHeader)};
}

ScaleUpdate update_on_device(const DynamicScale* moved) {
  if (moved == nullptr) return {};
  return {pointer<float>(moved->loss_scale), pointer<int32>(moved->growth_tracker),
          to_rule(moved->rule)};
}

Finalization on_device(const BackwardEnd& end, const Tensor& loss_scale,
                       const Tensor& overflow_flags) {
  return {flags_of(overflow_flags),
          static_cast<int32>(overflow_flags.numel() - kFlagsHeader),
          loss_scale.const_data_ptr<float>(),
          read(end.found_before),
          read(end.loss),
          pointer<float>(end.found_inf),
          pointer<float>(end.inv_scale),
          pointer<uint8>(end.per_tensor),
          end.adds_per_tensor,
          update_on_device(end.moved),
          pointer<Report>(end.report),
          pointer<float>(end.norm),
          reinterpret_cast<uint32*>(overflow_flags.mutable_data_ptr<uint8>())};
}

void on_cuda(cuda::Queue queue, const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags,
             const Finalization& end) {
  const int64 bytes = end.norm == nullptr ? 0 : cuda::finish_backward_workspace(plan);
  const Tensor partials = make_workspace(bytes, queue.device);
  cuda::finish_backward(queue, plan, inv_scale, accumulate, flags, end,
                        static_cast<float*>(partials.data_ptr()));
}

/// The tensors that no kernel supports.
void pass_over_rest(const Work& work, TensorList scaled_grads, TensorList master_grads,
                    const Tensor& loss_scale, bool accumulate, const aten::FlagTensors& flags) {
  const Tensor inv_scale = loss_scale.reciprocal();
  for (const int64_t i : work.rest) {
    if (master_grads.empty() || !master_grads[i].defined()) {
      flags.check(scaled_grads[i], i);
    } else {
      aten::unscale(scaled_grads[i], master_grads[i], i, inv_scale, accumulate, flags);
    }
  }
}

/// The norm of the grads without a master grad, by a separate pass.
void write_norm(const Tensor& norm, TensorList scaled_grads, TensorList master_grads) {
  std::vector<Tensor> checked = scaled_grads.vec();
  for (size_t i = 0; i < master_grads.size(); ++i) {
    if (master_grads[i].defined()) checked[i] = Tensor();
  }
  norm.copy_(std::get<0>(ops::l2norm(checked)));
}

/// After passes that were not only the kernels'.
void finalize(const DeviceKernels& kernels, const BackwardEnd& end, const Tensor& loss_scale,
              const Tensor& overflow_flags) {
  if (kernels.usable()) {
    return kernels.run(cpu::finalize, cuda::finalize, on_device(end, loss_scale, overflow_flags));
  }
  aten::finalize(flag_tensors(overflow_flags), end, loss_scale);
}

void run_pass(TensorList scaled_grads, TensorList master_grads, const Tensor& loss_scale,
              bool accumulate, const Tensor& overflow_flags, const BackwardEnd* end) {
  const DeviceKernels kernels(overflow_flags.device());
  const NamedList masters{"master_grads", master_grads, /*optional=*/true};
  const Work work = build_plan("scale_loss", {{"scaled_grads", scaled_grads}, masters}, kernels);
  const bool has_planned = work.plan.tensors() > 0, has_rest = !work.rest.empty();
  const bool ends_with_kernel = end != nullptr && !has_rest && has_planned;
  if (has_planned) {
    const InvScale inv_scale{loss_scale.const_data_ptr<float>(), /*is_loss_scale=*/true};
    kernels.run(cpu::finish_backward, on_cuda, work.plan, inv_scale, accumulate,
                flags_of(overflow_flags),
                ends_with_kernel ? on_device(*end, loss_scale, overflow_flags) : Finalization());
  }
  if (has_rest) {
    pass_over_rest(work, scaled_grads, master_grads, loss_scale, accumulate,
                   flag_tensors(overflow_flags));
  }
  if (end == nullptr || ends_with_kernel) return;
  if (end->norm.defined()) write_norm(end->norm, scaled_grads, master_grads);
  finalize(kernels, *end, loss_scale, overflow_flags);
}

void mark_outputs(const BackwardEnd& end) {
  for (const Tensor* output : {&end.found_inf, &end.inv_scale, &end.per_tensor, &end.norm}) {
    mark_written(*output);
  }
  if (end.moved == nullptr) return;
  mark_written(end.moved->loss_scale);
  mark_written(end.moved->growth_tracker);
}

}  // namespace

Tensor make_overflow_flags(int64_t length, at::Device device) {
  return at::zeros({kFlagsHeader + length}, at::TensorOptions(at::kByte).device(device));
}

void pass_over_grads(TensorList scaled_grads, TensorList master_grads, const Tensor& loss_scale,
                     bool accumulate, const Tensor& overflow_flags, const BackwardEnd* end) {
  check_scalar("scale_loss", "loss_scale", loss_scale, at::kFloat, overflow_flags);
  run_below_autograd("finish_backward", overflow_flags, [&] {
    run_pass(scaled_grads, master_grads, loss_scale, accumulate, overflow_flags, end);
  });
  mark_written(master_grads);
  if (end != nullptr) mark_outputs(*end);
}

}  // namespace torchamp
