#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torchamp/ops.h>

#include "aten/fallback.h"
#include "ops/checks.h"
#include "ops/device_kernels.h"
#include "ops/dispatch.h"
#include "ops/plan_builder.h"

namespace torchamp::ops {
namespace {

using at::Tensor;
using at::TensorList;
using Norms = std::tuple<Tensor, Tensor>;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kL2normSchema =
    "l2norm(Tensor[] tensors, bool per_tensor=False, Tensor? skip=None) -> (Tensor, Tensor)";
constexpr const char* kCheckL2normSchema =
    "check_l2norm(Tensor[] tensors, Tensor(a!) found_inf, "
    "Tensor(b!)? found_inf_per_tensor=None) -> Tensor";

/// ATen's own norms add floats one by one and lose digits; its sum adds them pairwise.
Tensor norm_in_aten(const Tensor& tensor, const OptionalTensor& skip) {
  const Tensor norm = tensor.to(aten::wide_type({tensor})).square().sum().sqrt().to(at::kFloat);
  return skip ? norm.masked_fill(skip->reshape({}).ne(0), 0) : norm;
}

/// The norm of the kernels' part together with those that ATen computed for the rest.
Tensor combine(const Tensor& of_plan, const Tensor& of_rest) {
  const Tensor all = at::linalg_vector_norm(of_rest.to(at::kDouble), 2).square();
  return of_plan.to(at::kDouble).square().add(all).sqrt().to(at::kFloat);
}

void on_cuda(cuda::Queue queue, const Plan& plan, float* norm, float* per_tensor, Flags flags,
             const float* skip) {
  const Tensor workspace = make_workspace(cuda::l2norm_workspace(plan), queue.device);
  cuda::l2norm(queue, plan, norm, per_tensor, flags, skip, workspace.data_ptr());
}

/// `found_inf`: undefined if the tensors are not checked.
Norms norms_of(const char* op, TensorList tensors, bool per_tensor, const Tensor& found_inf,
               const OptionalTensor& found_inf_per_tensor, const OptionalTensor& skip) {
  const DeviceKernels kernels((found_inf.defined() ? found_inf : first_defined(tensors)).device());
  const auto options = at::TensorOptions().device(kernels.device()).dtype(at::kFloat);
  const Work work = build_plan(op, {{"tensors", tensors}}, kernels);
  Tensor norm = at::zeros({}, options);
  Tensor norms = per_tensor ? at::zeros({static_cast<int64_t>(tensors.size())}, options) : Tensor();
  if (work.plan.tensors() > 0) {
    float* const of_each = per_tensor ? norms.mutable_data_ptr<float>() : nullptr;
    kernels.run(cpu::l2norm, on_cuda, work.plan, norm.mutable_data_ptr<float>(), of_each,
                make_flags(found_inf, found_inf_per_tensor),
                skip ? skip->const_data_ptr<float>() : nullptr);
  }
  if (work.rest.empty()) return {norm, norms};
  const aten::FlagTensors flags{found_inf, found_inf_per_tensor};
  std::vector<Tensor> of_rest;
  for (const int64_t i : work.rest) {
    of_rest.push_back(norm_in_aten(tensors[i], skip));
    if (per_tensor) norms.select(0, i).copy_(of_rest.back());
    flags.check(tensors[i], i);
  }
  return {combine(norm, at::stack(of_rest)), norms};
}

Norms run_l2norm(TensorList tensors, bool per_tensor, const OptionalTensor& skip) {
  return norms_of("l2norm", tensors, per_tensor, /*found_inf=*/{}, {}, skip);
}

Tensor run_check_l2norm(TensorList tensors, const Tensor& found_inf,
                        const OptionalTensor& found_inf_per_tensor) {
  return std::get<0>(norms_of("check_l2norm", tensors, false, found_inf, found_inf_per_tensor, {}));
}

/// Without per_tensor the second is empty: no schema has an optional result.
Norms checked_l2norm(TensorList tensors, bool per_tensor, const OptionalTensor& skip) {
  auto [norm, norms] = l2norm(tensors, per_tensor, skip);
  return {norm, norms.defined() ? norms : at::empty({0}, norm.options())};
}

Norms l2norm_on_meta(TensorList tensors, bool per_tensor, const OptionalTensor&) {
  const auto options = at::TensorOptions().device(at::kMeta).dtype(at::kFloat);
  const auto length = per_tensor ? static_cast<int64_t>(tensors.size()) : 0;
  return {at::empty({}, options), at::empty({length}, options)};
}

Tensor check_l2norm_on_meta(TensorList tensors, const Tensor&, const OptionalTensor&) {
  return std::get<0>(l2norm_on_meta(tensors, false, {}));
}

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  define(m, kL2normSchema, checked_l2norm, l2norm_on_meta);
  define(m, kCheckL2normSchema, check_l2norm, check_l2norm_on_meta);
}

}  // namespace

Tensor check_l2norm(TensorList tensors, const Tensor& found_inf,
                    const OptionalTensor& found_inf_per_tensor) {
  check_flags("check_l2norm", found_inf, found_inf_per_tensor, tensors.size());
  const Tensor norm = dispatch<run_check_l2norm>(kCheckL2normSchema, found_inf, tensors, found_inf,
                                                 found_inf_per_tensor);
  mark_written(found_inf);
  return norm;
}

Norms l2norm(TensorList tensors, bool per_tensor, const OptionalTensor& skip) {
  const Tensor& first = dispatched_by("l2norm", "tensors", tensors);
  if (skip) check_scalar("l2norm", "skip", *skip, at::kFloat, first);
  auto [norm, norms] = dispatch<run_l2norm>(kL2normSchema, first, tensors, per_tensor, skip);
  return {norm, per_tensor ? norms : Tensor()};
}

}  // namespace torchamp::ops
