#include "aten/fallback.h"

#include <ATen/ops/add.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "backends/scale_rule.h"

namespace torchamp::aten {
namespace {

using at::Tensor;
using at::TensorList;

/// kClean, kOverflowed or kLossNotFinite.
Tensor outcome_of(const BackwardEnd& end) {
  const Tensor found = end.found_inf.ne(0);
  const Tensor outcome = at::full_like(end.found_inf, kClean).masked_fill(found, kOverflowed);
  if (!end.loss.defined()) return outcome;
  const Tensor is_bad = end.loss.reshape({}).isfinite().logical_not();
  return outcome.masked_fill(is_bad.logical_and(found), kLossNotFinite);
}

/// In two consecutive copies.
void report(const BackwardEnd& end, const Tensor& loss_scale) {
  const Tensor &report = end.report, &per_tensor = end.per_tensor;
  const Tensor flags = per_tensor.to(at::kInt);
  const Tensor first = flags.argsort(/*stable=*/true, 0, /*descending=*/true);
  const Tensor named = first.slice(0, 0, kNamedPositions);
  const Tensor names = at::cat({flags.sum().reshape({1}), named}).to(at::kInt);
  const int64_t first_byte = sizeof(uint64), bytes = names.numel() * int64_t{sizeof(int32)};
  report.slice(0, first_byte, first_byte + bytes)
      .view(at::kInt)
      .copy_(names, /*non_blocking=*/true);
  report_outcome(report, outcome_of(end), loss_scale);
}

}  // namespace

at::ScalarType wide_type(std::initializer_list<Tensor> inputs) {
  const auto is_double = [](const Tensor& input) { return input.scalar_type() == at::kDouble; };
  return std::any_of(inputs.begin(), inputs.end(), is_double) ? at::kDouble : at::kFloat;
}

void FlagTensors::check(const Tensor& tensor, int64_t position) const {
  const Tensor bad = at::isfinite(tensor).all().logical_not();
  if (found_inf.defined()) {
    found_inf.copy_(found_inf.logical_or(bad).reshape_as(found_inf));
  }
  if (per_tensor.has_value()) {
    const Tensor flag = per_tensor->view({-1}).select(0, position);
    flag.copy_(flag.logical_or(bad));
  }
}

void FlagTensors::write(const Tensor& result, const Tensor& output, int64_t position) const {
  output.copy_(result);
  if (output.element_size() == 2) check(output, position);
}

void unscale(const Tensor& scaled_grad, const Tensor& master_grad, int64_t position,
             const Tensor& inv_scale, bool accumulate, const FlagTensors& flags) {
  flags.check(scaled_grad, position);
  const auto wide = accumulate ? wide_type({scaled_grad, master_grad}) : wide_type({scaled_grad});
  Tensor result = scaled_grad.to(wide).mul(inv_scale.squeeze());
  if (accumulate) result = result.add(master_grad.to(wide));
  flags.write(result, master_grad, position);
}

void update_scale(const Tensor& loss_scale, const Tensor& growth_tracker, const Tensor& found_inf,
                  const ScaleUpdate::Rule& rule) {
  const Tensor overflow = found_inf.reshape_as(loss_scale).ne(0);
  const Tensor count = growth_tracker.reshape_as(loss_scale).add(1);
  const Tensor recovers = count.le(0);
  const Tensor grows = recovers.logical_or(count.ge(rule.growth_interval));
  const Tensor before = loss_scale.clamp_max(rule.max_scale);
  const Tensor smaller = before.mul(rule.backoff_factor);
  const float collapsed = rule.min_scale <= kUseful ? rule.min_scale : 0.0f;
  const Tensor collapses = overflow.logical_and(smaller.lt(collapsed));
  const Tensor larger = before.mul(rule.growth_factor).clamp_max(rule.max_scale);
  const Tensor raised = at::where(grows, larger, before);
  const Tensor after_overflow = count.clamp_max(0).masked_fill(collapses, -kRecoveryOverflows);
  const Tensor ended =
      grows.logical_and(recovers.logical_not().logical_or(raised.eq(rule.max_scale)));
  const Tensor after_clean = count.sub(recovers.to(at::kInt)).masked_fill(ended, 0);
  growth_tracker.copy_(at::where(overflow, after_overflow, after_clean).reshape_as(growth_tracker));
  loss_scale.copy_(at::where(overflow, smaller.clamp_min(rule.min_scale), raised));
}

void clip_factors(TensorList norms, TensorList factors, double max_norm, const Tensor& norm,
                  const Tensor& coefficient, TensorList clipped) {
  const auto factor = [&](size_t i) {
    return factors[i].defined() ? factors[i].reshape({}) : at::ones_like(norm);
  };
  std::vector<Tensor> counted;
  for (size_t i = 0; i < norms.size(); ++i) counted.push_back(norms[i].mul(factor(i)));
  norm.copy_(at::stack(counted).to(at::kDouble).square().sum().sqrt());
  coefficient.fill_(max_norm).div_(norm.add(1e-6)).clamp_max_(1.0);
  for (size_t i = 0; i < norms.size(); ++i) clipped[i].copy_(factor(i).mul(coefficient));
}

void report_outcome(const Tensor& report, const Tensor& outcome, const Tensor& loss_scale) {
  const Tensor both = at::stack({outcome.reshape({}), loss_scale.reshape({})});
  report.slice(0, 0, sizeof(uint64)).view(at::kFloat).copy_(both, /*non_blocking=*/true);
}

void finalize(const FlagTensors& flags, const BackwardEnd& end, const Tensor& loss_scale) {
  const Tensor found = flags.found_inf.ne(0).reshape({});
  const Tensor& before = end.found_before;
  end.found_inf.copy_(before.defined() ? found.logical_or(before.reshape({}).ne(0)) : found);
  end.per_tensor.copy_(end.adds_per_tensor ? end.per_tensor.logical_or(*flags.per_tensor)
                                           : *flags.per_tensor);
  end.inv_scale.copy_(loss_scale.reciprocal().reshape({}));
  if (end.moved != nullptr) {
    update_scale(end.moved->loss_scale, end.moved->growth_tracker, end.found_inf,
                 to_rule(end.moved->rule));
  }
  if (end.report.defined()) {
    report(end, end.moved != nullptr ? end.moved->loss_scale : loss_scale);
  }
  flags.found_inf.zero_();
  flags.per_tensor->zero_();
}

}  // namespace torchamp::aten
