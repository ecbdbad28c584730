// Registers fused_step with the dispatcher.
#include <ATen/ops/zeros.h>
#include <torch/library.h>
#include <torchamp/fused_step.h>

#include <algorithm>

#include "aten/fused_step.h"
#include "ops/devices.h"

namespace torchamp {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;

template <class T>
T* pointer(const OptionalTensor& tensor) {
  return tensor ? tensor->mutable_data_ptr<T>() : nullptr;
}

StepInputs inputs_of(const StepScalars& scalars) {
  return {scalars.steps.mutable_data_ptr<float>(),
          pointer<float>(scalars.grad_factor),
          pointer<float>(scalars.skip),
          pointer<float>(scalars.param_norms),
          pointer<float>(scalars.update_norms),
          pointer<float>(scalars.norm_averages),
          scalars.stochastic_rounding};
}

std::vector<HyperRow> rows_of(const StepScalars& scalars) {
  const bool by_value = scalars.hyper.is_cpu();
  const double* const values = scalars.hyper.const_data_ptr<double>();
  std::vector<HyperRow> rows(scalars.hyper.size(0));
  for (size_t g = 0; g < rows.size(); ++g) {
    const double* const row = values + g * kHyperparameters;
    if (by_value) std::copy_n(row, kHyperparameters, rows[g].values);
    if (!by_value) rows[g].on_device = row;
    if (scalars.lrs.empty() || !scalars.lrs[g].defined()) continue;
    rows[g].lr = scalars.lrs[g].const_data_ptr();
    rows[g].lr_is_double = scalars.lrs[g].scalar_type() == at::kDouble;
  }
  return rows;
}

/// An element a group, undefined where a group has none; empty where none has one.
std::vector<Tensor> by_group(TensorList lrs, at::IntArrayRef lr_groups, int64_t groups) {
  std::vector<Tensor> all(lrs.empty() ? 0 : groups);
  for (size_t k = 0; k < lrs.size(); ++k) all[lr_groups[k]] = lrs[k];
  return all;
}

/// Each planned tensor's row.
std::vector<int32> row_numbers(const Plan& plan, const Tensor& groups) {
  const int32* const row_of = groups.const_data_ptr<int32>();
  std::vector<int32> numbers;
  numbers.reserve(plan.positions.size());
  for (const int32 position : plan.positions) numbers.push_back(row_of[position]);
  return numbers;
}

std::vector<uint8> tags_of(const Plan& plan, at::IntArrayRef unscaled, size_t length) {
  if (unscaled.empty()) return {};
  std::vector<uint8> by_position(length), tags;
  for (const int64_t i : unscaled) by_position[i] = 1;
  tags.reserve(plan.positions.size());
  for (const int32 position : plan.positions) tags.push_back(by_position[position]);
  return tags;
}

template <class Device>
Work gather_step(int64_t states, const StepLists& lists, at::Device device) {
  const size_t length = lists.grads.size();
  const NamedList grads{"grads", lists.grads};
  const NamedList params{"params", lists.params, /*optional=*/false, 0, /*remainders=*/true};
  const NamedList models{"model_params", lists.model_params, /*optional=*/true};
  const auto state = [&](size_t s) {
    const size_t first = s * length;
    NamedList list{"states", lists.states.slice(first, length), /*optional=*/false, first};
    list.known = lists.known_states;
    return list;
  };
  constexpr const char* kOp = "fused_step";
  switch (states) {
    case 0:
      return gather_for<Device>(kOp, device, {grads, params, models});
    case 1:
      return gather_for<Device>(kOp, device, {grads, params, state(0), models});
    case 2:
      return gather_for<Device>(kOp, device, {grads, params, state(0), state(1), models});
    default:
      return gather_for<Device>(kOp, device, {grads, params, state(0), state(1), state(2), models});
  }
}

/// A remainder means nothing without the parameter that it belongs to.
void check_remainder(const StepLists& lists, int64_t i) {
  const bool listed = !lists.model_params.empty() && lists.model_params[i].defined();
  const auto dtype = listed ? lists.model_params[i].scalar_type() : at::ScalarType::Undefined;
  TORCH_CHECK_TYPE(dtype == at::kHalf || dtype == at::kBFloat16,
                   "fused_step: expected model_params[", i,
                   "] to be float16 or bfloat16, because params[", i, "] holds remainders, got ",
                   listed ? c10::toString(dtype) : "none");
}

void check_remainders(const Work& work, const StepLists& lists) {
  for (int64_t t = 0; t < work.plan.tensors(); ++t) {
    if (work.plan.dtype(t, 1) == DType::kRemainder) check_remainder(lists, work.plan.positions[t]);
  }
  for (const int64_t i : work.rest) {
    if (lists.params[i].scalar_type() == at::kShort) check_remainder(lists, i);
  }
}

template <class Device>
void fused_step(int64_t which, TensorList grads, TensorList params, TensorList states,
                TensorList model_params, const Tensor& steps, const Tensor& hyper,
                const Tensor& groups, const OptionalTensor& grad_factor, const OptionalTensor& skip,
                const OptionalTensor& param_norms, const OptionalTensor& update_norms,
                const OptionalTensor& norm_averages, bool stochastic_rounding,
                const OptionalTensor& ticket, TensorList lrs, at::IntArrayRef lr_groups,
                at::IntArrayRef unscaled, int64_t known_states) {
  const std::vector<Tensor> lr_of_group = by_group(lrs, lr_groups, hyper.size(0));
  const auto algorithm = static_cast<StepAlgorithm>(which);
  auto* const known = reinterpret_cast<KnownTensors*>(known_states);
  const StepLists lists{grads, params, states, model_params, known, unscaled};
  const StepScalars scalars{steps,       hyper,        groups,        grad_factor,         skip,
                            param_norms, update_norms, norm_averages, stochastic_rounding, ticket,
                            lr_of_group};
  const at::Device device = steps.device();
  Work work = gather_step<Device>(states_of(algorithm), lists, device);
  check_remainders(work, lists);
  if (work.plan.tensors() > 0) {
    work.plan.tags = tags_of(work.plan, unscaled, grads.size());
    work.plan.rows = row_numbers(work.plan, groups);
    const Tensor own = ticket ? *ticket : at::zeros({}, steps.options().dtype(at::kInt));
    Device(device).step(static_cast<Algorithm>(which), work.plan, inputs_of(scalars),
                        rows_of(scalars), reinterpret_cast<uint32*>(own.mutable_data_ptr<int32>()));
  }
  aten::fused_step(work.rest, algorithm, lists, scalars);
}

TORCH_LIBRARY_IMPL(torchamp, CPU, m) {
  m.impl("_fused_step", fused_step<Cpu>);
}
TORCH_LIBRARY_IMPL(torchamp, CUDA, m) {
  m.impl("_fused_step", fused_step<Cuda>);
}
TORCH_LIBRARY_IMPL(torchamp, CompositeExplicitAutograd, m) {
  m.impl("_fused_step", fused_step<Other>);
}
/// The op writes in place, which changes no shape.
TORCH_LIBRARY_IMPL(torchamp, Meta, m) {
  m.impl("_fused_step",
         [](int64_t, TensorList, TensorList, TensorList, TensorList, const Tensor&, const Tensor&,
            const Tensor&, const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
            const OptionalTensor&, const OptionalTensor&, bool, const OptionalTensor&, TensorList,
            at::IntArrayRef, at::IntArrayRef, int64_t) {});
}

}  // namespace
}  // namespace torchamp
