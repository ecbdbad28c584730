#include <ATen/ops/empty.h>
#include <torch/library.h>
#include <torchamp/ops.h>

#include "ops/checks.h"
#include "ops/dispatch.h"
#include "ops/scale_rule.h"

namespace torchamp::ops {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;

TORCH_LIBRARY(torchamp, m) {
  m.def(
      "_scale(Tensor[] inputs, Tensor(a!)[] outputs, float scale, Tensor(b!) found_inf, "
      "Tensor(c!)? found_inf_per_tensor) -> ()");
  m.def(
      "_unscale(Tensor[] scaled_grads, Tensor(a!)[] master_grads, Tensor inv_scale, "
      "Tensor(b!) found_inf, bool accumulate, Tensor(c!)? found_inf_per_tensor) -> ()");
  m.def(
      "_axpby(float a, Tensor[] x, float b, Tensor[] y, Tensor(a!)[] outputs, Tensor(b!) "
      "found_inf, "
      "int checked, Tensor(c!)? found_inf_per_tensor) -> ()");
  m.def("_check(Tensor[] tensors, Tensor(a!) found_inf, Tensor(b!)? found_inf_per_tensor) -> ()");
  m.def(
      "_l2norm(Tensor[] tensors, bool per_tensor, Tensor(a!)? found_inf, "
      "Tensor(b!)? found_inf_per_tensor) -> (Tensor, Tensor)");
  m.def("_copy_cast(Tensor[] master_params, Tensor(a!)[] model_params) -> ()");
  m.def(
      "_update_scale(Tensor(a!) loss_scale, Tensor(b!) growth_tracker, Tensor(c!) "
      "hysteresis_tracker, Tensor found_inf, float[] rule) -> ()");
}

void check_flags(const char* op, const Tensor& found_inf, const OptionalTensor& per_tensor,
                 size_t length) {
  check_scalar(op, "found_inf", found_inf, at::kFloat);
  check_per_tensor(op, per_tensor, length, found_inf.device());
}

const Tensor& first_defined(TensorList tensors) {
  static const Tensor none = at::empty({0}, at::kFloat);
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) return tensor;
  }
  return none;
}

std::tuple<Tensor, Tensor> call_l2norm(TensorList tensors, bool per_tensor,
                                       const OptionalTensor& found_inf,
                                       const OptionalTensor& flags) {
  static const auto op = find<std::tuple<Tensor, Tensor>(
      TensorList, bool, const OptionalTensor&, const OptionalTensor&)>("torchamp::_l2norm");
  return call(op, first_defined(tensors), tensors, per_tensor, found_inf, flags);
}

}  // namespace

void scale(TensorList inputs, TensorList outputs, double scale, const Tensor& found_inf,
           const OptionalTensor& found_inf_per_tensor) {
  check_flags("scale", found_inf, found_inf_per_tensor, inputs.size());
  static const auto op =
      find<void(TensorList, TensorList, double, const Tensor&, const OptionalTensor&)>(
          "torchamp::_scale");
  call(op, found_inf, inputs, outputs, scale, found_inf, found_inf_per_tensor);
  mark_written(outputs);
  mark_written(found_inf);
}

void unscale(TensorList scaled_grads, TensorList master_grads, const Tensor& inv_scale,
             const Tensor& found_inf, bool accumulate, const OptionalTensor& found_inf_per_tensor) {
  check_flags("unscale", found_inf, found_inf_per_tensor, scaled_grads.size());
  check_scalar("unscale", "inv_scale", inv_scale, at::kFloat, found_inf.device());
  static const auto op =
      find<void(TensorList, TensorList, const Tensor&, const Tensor&, bool, const OptionalTensor&)>(
          "torchamp::_unscale");
  call(op, found_inf, scaled_grads, master_grads, inv_scale, found_inf, accumulate,
       found_inf_per_tensor);
  mark_written(master_grads);
  mark_written(found_inf);
}

void axpby(double a, TensorList x, double b, TensorList y, TensorList outputs,
           const Tensor& found_inf, Check checked, const OptionalTensor& found_inf_per_tensor) {
  check_flags("axpby", found_inf, found_inf_per_tensor, x.size());
  static const auto op =
      find<void(double, TensorList, double, TensorList, TensorList, const Tensor&, int64_t,
                const OptionalTensor&)>("torchamp::_axpby");
  call(op, found_inf, a, x, b, y, outputs, found_inf, static_cast<int64_t>(checked),
       found_inf_per_tensor);
  mark_written(outputs);
  mark_written(found_inf);
}

void check(TensorList tensors, const Tensor& found_inf,
           const OptionalTensor& found_inf_per_tensor) {
  check_flags("check", found_inf, found_inf_per_tensor, tensors.size());
  static const auto op =
      find<void(TensorList, const Tensor&, const OptionalTensor&)>("torchamp::_check");
  call(op, found_inf, tensors, found_inf, found_inf_per_tensor);
  mark_written(found_inf);
}

Tensor check_l2norm(TensorList tensors, const Tensor& found_inf,
                    const OptionalTensor& found_inf_per_tensor) {
  check_flags("check_l2norm", found_inf, found_inf_per_tensor, tensors.size());
  const Tensor norm = std::get<0>(call_l2norm(tensors, false, found_inf, found_inf_per_tensor));
  mark_written(found_inf);
  return norm;
}

std::tuple<Tensor, Tensor> l2norm(TensorList tensors, bool per_tensor) {
  return call_l2norm(tensors, per_tensor, std::nullopt, std::nullopt);
}

void copy_cast(TensorList master_params, TensorList model_params) {
  static const auto op = find<void(TensorList, TensorList)>("torchamp::_copy_cast");
  call(op, first_defined(master_params), master_params, model_params);
  mark_written(model_params);
}

void update_scale(const Tensor& loss_scale, const Tensor& growth_tracker,
                  const Tensor& hysteresis_tracker, const Tensor& found_inf,
                  const ScaleUpdate& rule) {
  check_scalar("update_scale", "loss_scale", loss_scale, at::kFloat);
  check_scalar("update_scale", "growth_tracker", growth_tracker, at::kInt, loss_scale.device());
  check_scalar("update_scale", "hysteresis_tracker", hysteresis_tracker, at::kInt,
               loss_scale.device());
  check_scalar("update_scale", "found_inf", found_inf, at::kFloat, loss_scale.device());
  static const auto op =
      find<void(const Tensor&, const Tensor&, const Tensor&, const Tensor&, at::ArrayRef<double>)>(
          "torchamp::_update_scale");
  call(op, loss_scale, loss_scale, growth_tracker, hysteresis_tracker, found_inf, values_of(rule));
  for (const Tensor& state : {loss_scale, growth_tracker, hysteresis_tracker}) mark_written(state);
}

}  // namespace torchamp::ops
