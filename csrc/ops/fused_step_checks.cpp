#include "ops/fused_step_checks.h"

#include "ops/checks.h"
#include "ops/memory.h"
#include "ops/step_rules.h"

namespace torchamp {
namespace {

using at::Tensor;
using at::TensorList;
using OptionalTensor = std::optional<Tensor>;

constexpr const char* kFusedStep = "fused_step";

void check_row(const char* name, const Tensor& tensor, at::ScalarType dtype, int64_t length,
               at::Device device) {
  check_array(kFusedStep, name, tensor, dtype, device, "position", static_cast<size_t>(length));
}

void check_optional_scalar(const char* name, const OptionalTensor& tensor, const Tensor& steps) {
  if (tensor) check_scalar(kFusedStep, name, *tensor, at::kFloat, steps);
}

void check_optional_row(const char* name, const OptionalTensor& tensor, bool needed, int64_t length,
                        at::Device device) {
  TORCH_CHECK_TYPE(tensor || !needed, kFusedStep, ": expected ", name,
                   " to be a tensor for this algorithm, got none");
  if (tensor) check_row(name, *tensor, at::kFloat, length, device);
}

void check_groups(const Tensor& groups, int64_t length, int64_t rows) {
  check_row("groups", groups, at::kInt, length, at::kCPU);
  const int32_t* const row_of = groups.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < length; ++i) {
    TORCH_CHECK(0 <= row_of[i] && row_of[i] < rows, kFusedStep, ": expected groups[", i,
                "] to be a row index of hyper, below ", rows, ", got ", row_of[i]);
  }
}

void check_lrs(TensorList lrs, int64_t groups, const Tensor& steps) {
  if (lrs.empty()) return;
  TORCH_CHECK(static_cast<int64_t>(lrs.size()) == groups, kFusedStep,
              ": expected lrs to have one tensor per group, ", groups, ", got ", lrs.size());
  for (const Tensor& lr : lrs) {
    if (!lr.defined()) continue;
    const bool wide = lr.scalar_type() == at::kDouble;
    check_scalar(kFusedStep, "lrs", lr, wide ? at::kDouble : at::kFloat, steps);
  }
}

void check_hyper(const StepScalars& scalars, int64_t length) {
  const bool by_value = scalars.hyper.defined() && scalars.hyper.is_cpu();
  check_array(kFusedStep, "hyper", scalars.hyper, at::kDouble,
              by_value ? at::kCPU : scalars.steps.device());
  TORCH_CHECK(scalars.hyper.dim() == 2 && scalars.hyper.size(1) == kHyperparameters, kFusedStep,
              ": expected hyper to have sizes [groups, ", kHyperparameters, "], got ",
              scalars.hyper.sizes());
  check_groups(scalars.groups, length, scalars.hyper.size(0));
  check_lrs(scalars.lrs, scalars.hyper.size(0), scalars.steps);
}

void check_scalars(StepAlgorithm algorithm, const StepScalars& scalars, int64_t length) {
  TORCH_CHECK_TYPE(scalars.steps.defined(), kFusedStep,
                   ": expected steps to be a tensor, got none");
  const at::Device device = scalars.steps.device();
  const StepRule rule = rule_of(algorithm);
  check_row("steps", scalars.steps, at::kFloat, length, device);
  check_memory(kFusedStep, "steps", scalars.steps, /*takes_meta=*/true);
  check_hyper(scalars, length);
  check_optional_scalar("grad_factor", scalars.grad_factor, scalars.steps);
  check_optional_scalar("skip", scalars.skip, scalars.steps);
  check_optional_row("param_norms", scalars.param_norms, rule.adapts, length, device);
  check_optional_row("update_norms", scalars.update_norms, rule.adapts || rule.averages, length,
                     device);
  check_optional_row("norm_averages", scalars.norm_averages, rule.averages, length, device);
  if (scalars.ticket) check_scalar(kFusedStep, "ticket", *scalars.ticket, at::kInt, scalars.steps);
}

void check_unscaled(at::IntArrayRef unscaled, int64_t length) {
  for (size_t k = 0; k < unscaled.size(); ++k) {
    TORCH_CHECK(0 <= unscaled[k] && unscaled[k] < length, kFusedStep, ": expected unscaled[", k,
                "] to be an index of the lists, below ", length, ", got ", unscaled[k]);
  }
}

}  // namespace

void check_arguments(StepAlgorithm algorithm, const StepLists& lists, const StepScalars& scalars) {
  const auto length = static_cast<int64_t>(lists.grads.size());
  check_scalars(algorithm, scalars, length);
  const int64_t states = states_of(algorithm) * length;
  TORCH_CHECK(static_cast<int64_t>(lists.states.size()) == states, kFusedStep,
              ": expected states to have ", states_of(algorithm), " tensors per position, ", states,
              ", got ", lists.states.size());
  check_unscaled(lists.unscaled, length);
}

}  // namespace torchamp
