#include <torch/library.h>
#include <torchamp/fused_step.h>

#include "math/optim/step.h"
#include "ops/checks.h"
#include "ops/dispatch.h"

namespace torchamp {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kOp = "fused_step";

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  m.def(
      "_fused_step(int algorithm, Tensor[] grads, Tensor(a!)[] params, Tensor(b!)[] states, "
      "Tensor(c!)[] model_params, Tensor(d!) steps, Tensor hyper, Tensor groups, "
      "Tensor? grad_factor, Tensor? skip, Tensor? param_norms, Tensor? update_norms, "
      "Tensor(e!)? norm_averages, bool stochastic_rounding, Tensor(f!)? ticket, Tensor[] lrs, "
      "int[] lr_groups, int[] unscaled, int known_states) -> ()");
}

void check_row(const char* name, const Tensor& tensor, at::ScalarType dtype, int64_t length,
               at::Device device) {
  check_array(kOp, name, tensor, dtype, device);
  TORCH_CHECK(tensor.numel() == length, kOp, ": expected ", name,
              " to have one element a position, ", length, ", got ", tensor.numel());
}

void check_optional_scalar(const char* name, const OptionalTensor& tensor, at::Device device) {
  if (tensor) check_scalar(kOp, name, *tensor, at::kFloat, device);
}

void check_optional_row(const char* name, const OptionalTensor& tensor, bool needed, int64_t length,
                        at::Device device) {
  TORCH_CHECK_TYPE(tensor || !needed, kOp, ": expected ", name,
                   " to be a tensor for this algorithm, got none");
  if (tensor) check_row(name, *tensor, at::kFloat, length, device);
}

void check_groups(const Tensor& groups, int64_t length, int64_t rows) {
  check_row("groups", groups, at::kInt, length, at::kCPU);
  const int32_t* const row_of = groups.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < length; ++i) {
    TORCH_CHECK(0 <= row_of[i] && row_of[i] < rows, kOp, ": expected groups[", i,
                "] to be a row of hyper, below ", rows, ", got ", row_of[i]);
  }
}

void check_lrs(TensorList lrs, int64_t groups, at::Device device) {
  if (lrs.empty()) return;
  TORCH_CHECK(static_cast<int64_t>(lrs.size()) == groups, kOp,
              ": expected lrs to have a tensor a group, ", groups, ", got ", lrs.size());
  for (const Tensor& lr : lrs) {
    if (!lr.defined()) continue;
    const bool wide = lr.scalar_type() == at::kDouble;
    check_scalar(kOp, "lrs", lr, wide ? at::kDouble : at::kFloat, device);
  }
}

void check_hyper(const StepScalars& scalars, int64_t length, at::Device device) {
  const bool by_value = scalars.hyper.defined() && scalars.hyper.is_cpu();
  check_array(kOp, "hyper", scalars.hyper, at::kDouble, by_value ? at::kCPU : device);
  TORCH_CHECK(scalars.hyper.dim() == 2 && scalars.hyper.size(1) == kHyperparameters, kOp,
              ": expected hyper to have sizes [groups, ", kHyperparameters, "], got ",
              scalars.hyper.sizes());
  check_groups(scalars.groups, length, scalars.hyper.size(0));
  check_lrs(scalars.lrs, scalars.hyper.size(0), device);
}

void check_scalars(StepAlgorithm algorithm, const StepScalars& scalars, int64_t length) {
  TORCH_CHECK_TYPE(scalars.steps.defined(), kOp, ": expected steps to be a tensor, got none");
  const at::Device device = scalars.steps.device();
  const bool adapts = algorithm == StepAlgorithm::kLambApply;
  const bool averages = algorithm == StepAlgorithm::kNovoGrad;
  check_row("steps", scalars.steps, at::kFloat, length, device);
  check_hyper(scalars, length, device);
  check_optional_scalar("grad_factor", scalars.grad_factor, device);
  check_optional_scalar("skip", scalars.skip, device);
  check_optional_row("param_norms", scalars.param_norms, adapts, length, device);
  check_optional_row("update_norms", scalars.update_norms, adapts || averages, length, device);
  check_optional_row("norm_averages", scalars.norm_averages, averages, length, device);
  if (scalars.ticket) check_scalar(kOp, "ticket", *scalars.ticket, at::kInt, device);
}

void check_unscaled(at::IntArrayRef unscaled, int64_t length) {
  for (size_t k = 0; k < unscaled.size(); ++k) {
    TORCH_CHECK(0 <= unscaled[k] && unscaled[k] < length, kOp, ": expected unscaled[", k,
                "] to be a position of the lists, below ", length, ", got ", unscaled[k]);
  }
}

using Signature = void(int64_t, TensorList, TensorList, TensorList, TensorList, const Tensor&,
                       const Tensor&, const Tensor&, const OptionalTensor&, const OptionalTensor&,
                       const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool,
                       const OptionalTensor&, TensorList, at::IntArrayRef, at::IntArrayRef,
                       int64_t);

/// A list without gaps, at which dispatch modes stop, and whose learning rates stand in it.
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

}  // namespace

int64_t states_of(StepAlgorithm algorithm) {
  switch (static_cast<Algorithm>(algorithm)) {
#define TORCHAMP_CASE(Name, name) \
  case Algorithm::k##Name:        \
    return Name::kStates;
    TORCHAMP_ALGORITHMS(TORCHAMP_CASE)
#undef TORCHAMP_CASE
  }
  return 0;
}

void fused_step(StepAlgorithm algorithm, const StepLists& lists, const StepScalars& scalars) {
  static_assert(kHyperparameters == kHyperSize, "rows are of one length");
  const auto length = static_cast<int64_t>(lists.grads.size());
  check_scalars(algorithm, scalars, length);
  const int64_t states = states_of(algorithm) * length;
  TORCH_CHECK(static_cast<int64_t>(lists.states.size()) == states, kOp,
              ": expected states to have ", states_of(algorithm), " tensors a position, ", states,
              ", got ", lists.states.size());
  check_unscaled(lists.unscaled, length);
  const LearningRates rates(scalars.lrs);
  static const auto op = find<Signature>("torchamp::_fused_step");
  call(op, scalars.steps, static_cast<int64_t>(algorithm), lists.grads, lists.params, lists.states,
       lists.model_params, scalars.steps, scalars.hyper, scalars.groups, scalars.grad_factor,
       scalars.skip, scalars.param_norms, scalars.update_norms, scalars.norm_averages,
       scalars.stochastic_rounding, scalars.ticket, rates.lrs, rates.groups, lists.unscaled,
       reinterpret_cast<int64_t>(lists.known_states));
  if (algorithm != StepAlgorithm::kLambUpdate) mark_written(lists.params);
  if (lists.known_states == nullptr) mark_written(lists.states);
  mark_written(lists.model_params);
  mark_written(scalars.steps);
  if (scalars.norm_averages) mark_written(*scalars.norm_averages);
}

}  // namespace torchamp
