#include "aten/fused_step.h"

#include <ATen/ops/zeros.h>
#include <c10/util/SmallVector.h>
#include <torchamp/fused_step.h>

#include <algorithm>
#include <iterator>
#include <sstream>

#include "ops/device_kernels.h"
#include "ops/dispatch.h"
#include "ops/fused_step_checks.h"
#include "ops/plan_builder.h"
#include "ops/step_rules.h"

namespace torchamp {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kFusedStepSchema =
    "fused_step(int algorithm, Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] states, "
    "Tensor(c!) steps, Tensor hyper, Tensor groups, Tensor(d!)[] model_params, Tensor[] lrs, "
    "Tensor? grad_factor=None, Tensor? skip=None, Tensor? param_norms=None, "
    "Tensor? update_norms=None, Tensor(e!)? norm_averages=None, bool stochastic_rounding=False, "
    "int[] lr_groups=[], int[] unscaled=[]) -> ()";

#define TORCHAMP_ASSERT(Name, name) \
  static_assert(static_cast<int>(StepAlgorithm::k##Name) == static_cast<int>(Algorithm::k##Name));
TORCHAMP_ALGORITHMS(TORCHAMP_ASSERT)
#undef TORCHAMP_ASSERT
static_assert(kHyperparameters == kHyperSize, "rows are of one length");

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

Work plan_step(int64_t states, const StepLists& lists, const DeviceKernels& kernels) {
  const size_t length = lists.grads.size();
  const auto known = [&](NamedList list, size_t first) {
    list.known = lists.known;
    list.first_known = first;
    return list;
  };
  c10::SmallVector<NamedList, 6> all{{"grads", lists.grads}};
  all.push_back(known({"params", lists.params}, states * length));
  for (size_t first = 0; first < states * length; first += length) {
    const NamedList list{"states", lists.states.slice(first, length), /*optional=*/false, first};
    all.push_back(known(list, first));
  }
  const NamedList models{"model_params", lists.model_params, /*optional=*/true};
  all.push_back(known(models, (states + 1) * length));
  return build_plan("fused_step", all, kernels);
}

void run_fused_step(StepAlgorithm algorithm, const StepLists& lists, const StepScalars& scalars) {
  const DeviceKernels kernels(scalars.steps.device());
  Work work = plan_step(states_of(algorithm), lists, kernels);
  if (work.plan.tensors() > 0) {
    work.plan.tags = tags_of(work.plan, lists.unscaled, lists.grads.size());
    work.plan.rows = row_numbers(work.plan, scalars.groups);
    const Tensor ticket =
        scalars.ticket ? *scalars.ticket : at::zeros({}, scalars.steps.options().dtype(at::kInt));
    kernels.run(cpu::step, cuda::step, static_cast<Algorithm>(algorithm), work.plan,
                inputs_of(scalars), rows_of(scalars),
                reinterpret_cast<uint32*>(ticket.mutable_data_ptr<int32>()));
  }
  aten::fused_step(work.rest, algorithm, lists, scalars);
}

/// The learning rates that are tensors, and their groups: a list without undefined tensors, which
/// dispatch modes reject.
struct LearningRates {
  explicit LearningRates(TensorList by_group) {
    for (size_t g = 0; g < by_group.size(); ++g) {
      if (!by_group[g].defined()) continue;
      lrs.push_back(by_group[g]);
      groups.push_back(static_cast<int64_t>(g));
    }
  }

  std::vector<Tensor> lrs;
  std::vector<int64_t> groups;
};

/// One element per row of hyper, undefined if the group has none; empty if none has one.
std::vector<Tensor> by_group(TensorList lrs, at::IntArrayRef lr_groups, const Tensor& hyper) {
  std::vector<Tensor> all(lrs.empty() ? 0 : hyper.size(0));
  for (size_t k = 0; k < lrs.size(); ++k) all.at(lr_groups.at(k)) = lrs[k];
  return all;
}

void checked_fused_step(int64_t algorithm, TensorList grads, TensorList params, TensorList states,
                        const Tensor& steps, const Tensor& hyper, const Tensor& groups,
                        TensorList model_params, TensorList lrs, const OptionalTensor& grad_factor,
                        const OptionalTensor& skip, const OptionalTensor& param_norms,
                        const OptionalTensor& update_norms, const OptionalTensor& norm_averages,
                        bool stochastic_rounding, at::IntArrayRef lr_groups,
                        at::IntArrayRef unscaled) {
  const std::vector<Tensor> lr_of_group = by_group(lrs, lr_groups, hyper);
  fused_step(static_cast<StepAlgorithm>(algorithm),
             {grads, params, states, model_params, /*known=*/nullptr, unscaled},
             {steps, hyper, groups, grad_factor, skip, param_norms, update_norms, norm_averages,
              stochastic_rounding, /*ticket=*/{}, lr_of_group});
}

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  define(m, kFusedStepSchema, checked_fused_step);
}

}  // namespace

int64_t states_of(StepAlgorithm algorithm) {
  return rule_of(algorithm).states;
}

std::vector<std::string> state_names(StepAlgorithm algorithm) {
  std::istringstream names(rule_of(algorithm).state_names);
  using Words = std::istream_iterator<std::string>;
  return {Words(names), Words()};
}

void fused_step(StepAlgorithm algorithm, const StepLists& lists, const StepScalars& scalars) {
  check_arguments(algorithm, lists, scalars);
  const LearningRates rates(scalars.lrs);
  dispatch<decltype(checked_fused_step)>(
      kFusedStepSchema, scalars.steps, [&] { run_fused_step(algorithm, lists, scalars); },
      static_cast<int64_t>(algorithm), lists.grads, lists.params, lists.states, scalars.steps,
      scalars.hyper, scalars.groups, lists.model_params, rates.lrs, scalars.grad_factor,
      scalars.skip, scalars.param_norms, scalars.update_norms, scalars.norm_averages,
      scalars.stochastic_rounding, rates.groups, lists.unscaled);
  if (algorithm != StepAlgorithm::kLambUpdate) mark_written(lists.params);
  if (lists.known == nullptr) mark_written(lists.states);
  mark_written(lists.model_params);
  mark_written(scalars.steps);
  if (scalars.norm_averages) mark_written(*scalars.norm_averages);
}

}  // namespace torchamp
