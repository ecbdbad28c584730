// Registers the ops with the dispatcher: kernels for CPU and CUDA, ATen for the rest, nothing to do
// for Meta.
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "aten/fallback.h"
#include "ops/devices.h"
#include "ops/scale_rule.h"

namespace torchamp {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;

template <class Device>
void scale(TensorList inputs, TensorList outputs, double factor, const Tensor& found_inf,
           const OptionalTensor& per_tensor) {
  const Work work =
      gather_for<Device>("scale", found_inf.device(), {{"inputs", inputs}, {"outputs", outputs}});
  if (work.plan.tensors() > 0) {
    const Flags flags = make_flags(found_inf, per_tensor);
    Device(found_inf.device()).scale(work.plan, static_cast<float>(factor), flags);
  }
  aten::scale(work.rest, inputs, outputs, factor, {found_inf, per_tensor});
}

template <class Device>
void unscale(TensorList scaled_grads, TensorList master_grads, const Tensor& inv_scale,
             const Tensor& found_inf, bool accumulate, const OptionalTensor& per_tensor) {
  const Work work =
      gather_for<Device>("unscale", found_inf.device(),
                         {{"scaled_grads", scaled_grads}, {"master_grads", master_grads}});
  if (work.plan.tensors() > 0) {
    const Flags flags = make_flags(found_inf, per_tensor);
    const InvScale factor{inv_scale.const_data_ptr<float>(), /*is_loss_scale=*/false};
    Device(found_inf.device()).unscale(work.plan, factor, accumulate, flags);
  }
  aten::unscale(work.rest, scaled_grads, master_grads, inv_scale, accumulate,
                {found_inf, per_tensor});
}

template <class Device>
void axpby(double a, TensorList x, double b, TensorList y, TensorList outputs,
           const Tensor& found_inf, int64_t which, const OptionalTensor& per_tensor) {
  const auto checked = static_cast<Checked>(which);
  const Work work =
      gather_for<Device>("axpby", found_inf.device(), {{"x", x}, {"y", y}, {"outputs", outputs}});
  if (work.plan.tensors() > 0) {
    const Flags flags = make_flags(found_inf, per_tensor);
    Device(found_inf.device())
        .axpby(work.plan, static_cast<float>(a), static_cast<float>(b), checked, flags);
  }
  aten::axpby(work.rest, a, x, b, y, outputs, checked, {found_inf, per_tensor});
}

template <class Device>
void check(TensorList tensors, const Tensor& found_inf, const OptionalTensor& per_tensor) {
  const Work work = gather_for<Device>("check", found_inf.device(), {{"tensors", tensors}});
  if (work.plan.tensors() > 0) {
    Device(found_inf.device()).check(work.plan, make_flags(found_inf, per_tensor));
  }
  aten::check(work.rest, tensors, {found_inf, per_tensor});
}

at::Device device_of_first(TensorList tensors) {
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) return tensor.device();
  }
  return at::kCPU;
}

/// Joins the norm of the kernels' part with those that ATen computed for the rest.
Tensor joined_norm(const Tensor& of_plan, const Tensor& of_rest) {
  const Tensor all = at::linalg_vector_norm(of_rest.to(at::kDouble), 2).square();
  return of_plan.to(at::kDouble).square().add(all).sqrt().to(at::kFloat);
}

template <class Device>
std::tuple<Tensor, Tensor> l2norm(TensorList tensors, bool per_tensor,
                                  const OptionalTensor& found_inf,
                                  const OptionalTensor& found_inf_per_tensor) {
  const at::Device device = device_of_first(tensors);
  const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
  const Work work =
      gather_for<Device>(found_inf ? "check_l2norm" : "l2norm", device, {{"tensors", tensors}});
  Tensor norm = at::zeros({}, options);
  Tensor norms = per_tensor ? at::zeros({static_cast<int64_t>(tensors.size())}, options) : Tensor();
  if (work.plan.tensors() > 0) {
    float* of_each = per_tensor ? norms.mutable_data_ptr<float>() : nullptr;
    const Flags flags = make_flags(found_inf.value_or(Tensor()), found_inf_per_tensor);
    Device(device).l2norm(work.plan, norm.mutable_data_ptr<float>(), of_each, flags);
  }
  if (work.rest.empty()) return {norm, norms};
  const Tensor of_rest = aten::l2norms(work.rest, tensors);
  for (size_t i = 0; per_tensor && i < work.rest.size(); ++i) {
    norms.select(0, work.rest[i]).copy_(of_rest.select(0, static_cast<int64_t>(i)));
  }
  aten::check(work.rest, tensors, {found_inf.value_or(Tensor()), found_inf_per_tensor});
  return {joined_norm(norm, of_rest), norms};
}

template <class Device>
void copy_cast(TensorList master_params, TensorList model_params) {
  const at::Device device = device_of_first(master_params);
  const Work work = gather_for<Device>(
      "copy_cast", device, {{"master_params", master_params}, {"model_params", model_params}});
  if (work.plan.tensors() > 0) Device(device).copy_cast(work.plan);
  aten::copy_cast(work.rest, master_params, model_params);
}

template <class Device>
void update_scale(const Tensor& loss_scale, const Tensor& growth_tracker,
                  const Tensor& hysteresis_tracker, const Tensor& found_inf,
                  at::ArrayRef<double> values) {
  const ScaleRule rule = to_rule(values);
  if (!Device::usable(loss_scale.device())) {
    return aten::update_scale(loss_scale, growth_tracker, hysteresis_tracker, found_inf, rule);
  }
  const MovingScale scale{loss_scale.mutable_data_ptr<float>(),
                          growth_tracker.mutable_data_ptr<int32>(),
                          hysteresis_tracker.mutable_data_ptr<int32>(), rule};
  Device(loss_scale.device()).update_scale(scale, found_inf.const_data_ptr<float>());
}

template <class Device>
void register_ops(torch::Library& m) {
  m.impl("_scale", scale<Device>);
  m.impl("_unscale", unscale<Device>);
  m.impl("_axpby", axpby<Device>);
  m.impl("_check", check<Device>);
  m.impl("_l2norm", l2norm<Device>);
  m.impl("_copy_cast", copy_cast<Device>);
  m.impl("_update_scale", update_scale<Device>);
}

std::tuple<Tensor, Tensor> l2norm_shapes(TensorList tensors, bool per_tensor, const OptionalTensor&,
                                         const OptionalTensor&) {
  const auto options = at::TensorOptions().device(at::kMeta).dtype(at::kFloat);
  const auto length = static_cast<int64_t>(tensors.size());
  return {at::empty({}, options), per_tensor ? at::empty({length}, options) : Tensor()};
}

TORCH_LIBRARY_IMPL(torchamp, CPU, m) {
  register_ops<Cpu>(m);
}
TORCH_LIBRARY_IMPL(torchamp, CUDA, m) {
  register_ops<Cuda>(m);
}
TORCH_LIBRARY_IMPL(torchamp, CompositeExplicitAutograd, m) {
  register_ops<Other>(m);
}

/// The ops write in place, which changes no shape.
TORCH_LIBRARY_IMPL(torchamp, Meta, m) {
  m.impl("_scale", [](TensorList, TensorList, double, const Tensor&, const OptionalTensor&) {});
  m.impl("_unscale",
         [](TensorList, TensorList, const Tensor&, const Tensor&, bool, const OptionalTensor&) {});
  m.impl("_axpby", [](double, TensorList, double, TensorList, TensorList, const Tensor&, int64_t,
                      const OptionalTensor&) {});
  m.impl("_check", [](TensorList, const Tensor&, const OptionalTensor&) {});
  m.impl("_l2norm", l2norm_shapes);
  m.impl("_copy_cast", [](TensorList, TensorList) {});
  m.impl("_update_scale",
         [](const Tensor&, const Tensor&, const Tensor&, const Tensor&, at::ArrayRef<double>) {});
}

}  // namespace
}  // namespace torchamp
