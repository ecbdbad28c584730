// Registers _finish_backward with the dispatcher.
#include <torch/library.h>
#include <torchamp/ops.h>

#include "aten/fallback.h"
#include "ops/devices.h"
#include "ops/ending_list.h"
#include "ops/finish_backward.h"
#include "ops/scale_rule.h"

namespace torchamp {
namespace {

using at::Tensor;
using at::TensorList;

template <class T>
T* pointer(const Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

Flags flags_of(const Tensor& raised) {
  uint8* const bytes = raised.mutable_data_ptr<uint8>();
  return {reinterpret_cast<float*>(bytes + sizeof(uint32)), bytes + kRaisedHeader};
}

aten::FlagTensors flag_tensors(const Tensor& raised) {
  return {raised.slice(0, sizeof(uint32), 2 * sizeof(uint32)).view(at::kFloat),
          raised.slice(0, kRaisedHeader)};
}

MovingScale moving_scale(TensorList ending, at::ArrayRef<double> rule) {
  return {pointer<float>(ending[kMovedScale]), pointer<int32>(ending[kGrowthTracker]),
          pointer<int32>(ending[kHysteresisTracker]), to_rule(rule)};
}

Ending ending_of(TensorList tensors, const Tensor& loss_scale, const Tensor& raised,
                 bool adds_per_tensor, at::ArrayRef<double> rule) {
  Ending ending;
  ending.verdict = {flags_of(raised),
                    static_cast<int32>(raised.numel() - kRaisedHeader),
                    loss_scale.const_data_ptr<float>(),
                    pointer<float>(tensors[kFoundBefore]),
                    pointer<float>(tensors[kFoundInf]),
                    pointer<float>(tensors[kInvScale]),
                    pointer<uint8>(tensors[kPerTensor]),
                    adds_per_tensor,
                    moving_scale(tensors, rule),
                    pointer<Report>(tensors[kReport])};
  ending.norm = pointer<float>(tensors[kNorm]);
  ending.ticket = reinterpret_cast<uint32*>(raised.mutable_data_ptr<uint8>());
  return ending;
}

/// What no kernel takes.
void pass_over_rest(const Work& work, TensorList scaled_grads, TensorList master_grads,
                    const Tensor& loss_scale, bool accumulate, const aten::FlagTensors& flags) {
  aten::Positions checked, written;
  for (const int64_t i : work.rest) {
    const bool has_master_grad = !master_grads.empty() && master_grads[i].defined();
    (has_master_grad ? written : checked).push_back(i);
  }
  aten::check(checked, scaled_grads, flags);
  aten::unscale(written, scaled_grads, master_grads, loss_scale.reciprocal(), accumulate, flags);
}

/// The norm of the grads without a master grad, by a pass of its own.
void write_norm(const Tensor& norm, TensorList scaled_grads, TensorList master_grads) {
  std::vector<Tensor> checked = scaled_grads.vec();
  for (size_t i = 0; i < master_grads.size(); ++i) {
    if (master_grads[i].defined()) checked[i] = Tensor();
  }
  norm.copy_(std::get<0>(ops::l2norm(checked)));
}

/// An ending by itself, after passes that were not the kernels' alone.
template <class Device>
void conclude(const Tensor& raised, TensorList ending, const Tensor& loss_scale,
              bool adds_per_tensor, at::ArrayRef<double> rule) {
  if (Device::usable(raised.device())) {
    const Ending on_device = ending_of(ending, loss_scale, raised, adds_per_tensor, rule);
    return Device(raised.device()).conclude(on_device.verdict);
  }
  aten::conclude(flag_tensors(raised), ending, loss_scale, adds_per_tensor, to_rule(rule));
}

template <class Device>
void finish_backward(TensorList scaled_grads, TensorList master_grads, const Tensor& loss_scale,
                     bool accumulate, const Tensor& raised, TensorList ending, bool adds_per_tensor,
                     at::ArrayRef<double> rule) {
  const NamedList masters{"master_grads", master_grads, /*optional=*/true};
  const Work work =
      gather_for<Device>("scale_loss", raised.device(), {{"scaled_grads", scaled_grads}, masters});
  const bool ends_with_kernel = !ending.empty() && work.rest.empty() && work.plan.tensors() > 0;
  if (work.plan.tensors() > 0) {
    const InvScale inv_scale{loss_scale.const_data_ptr<float>(), /*is_loss_scale=*/true};
    const Ending on_device =
        ends_with_kernel ? ending_of(ending, loss_scale, raised, adds_per_tensor, rule) : Ending();
    Device(raised.device())
        .finish_backward(work.plan, inv_scale, accumulate, flags_of(raised), on_device);
  }
  if (!work.rest.empty()) {
    pass_over_rest(work, scaled_grads, master_grads, loss_scale, accumulate, flag_tensors(raised));
  }
  if (ending.empty() || ends_with_kernel) return;
  if (ending[kNorm].defined()) write_norm(ending[kNorm], scaled_grads, master_grads);
  conclude<Device>(raised, ending, loss_scale, adds_per_tensor, rule);
}

TORCH_LIBRARY_IMPL(torchamp, CPU, m) {
  m.impl("_finish_backward", finish_backward<Cpu>);
}
TORCH_LIBRARY_IMPL(torchamp, CUDA, m) {
  m.impl("_finish_backward", finish_backward<Cuda>);
}
TORCH_LIBRARY_IMPL(torchamp, CompositeExplicitAutograd, m) {
  m.impl("_finish_backward", finish_backward<Other>);
}
/// The op writes in place, which changes no shape.
TORCH_LIBRARY_IMPL(torchamp, Meta, m) {
  m.impl("_finish_backward", [](TensorList, TensorList, const Tensor&, bool, const Tensor&,
                                TensorList, bool, at::ArrayRef<double>) {});
}

}  // namespace
}  // namespace torchamp
