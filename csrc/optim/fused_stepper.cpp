#include "optim/fused_stepper.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/ops.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "ops/borrowed.h"
#include "ops/known_tensors.h"
#include "ops/memory.h"
#include "ops/outside_capture.h"
#include "ops/step_rules.h"

namespace torchamp {
namespace {

using at::Tensor;

/// The column of hyperparameters that requires a norm.
constexpr size_t kMaxGradNorm = offsetof(LambUpdate::Hyper, max_grad_norm) / sizeof(double);

void check_storage(const FusedStepper::Storage& storage, const std::vector<Tensor>& params) {
  const auto dtype = storage.state_dtype;
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16,
                    "FusedStepper: expected state_dtype to be float32 or bfloat16, got ", dtype);
  for (size_t i = 0; storage.stochastic_rounding && i < params.size(); ++i) {
    TORCH_CHECK_VALUE(params[i].scalar_type() != at::kHalf, "FusedStepper: expected params[", i,
                      "] to be bfloat16 or wider for stochastic rounding, got Half");
  }
}

Tensor multiplied(const Tensor& norms, const std::optional<Tensor>& grad_factor) {
  return grad_factor ? norms.mul(grad_factor->reshape({})).abs() : norms;
}

}  // namespace

FusedStepper::FusedStepper(StepAlgorithm algorithm, std::vector<Tensor> params,
                           std::vector<int64_t> groups, Storage storage)
    : algorithm_(algorithm),
      storage_(storage),
      params_(std::move(params)),
      states_(state_names(algorithm).size() * params_.size()),
      has_states_(params_.size()),
      known_(std::make_shared<KnownTensors>()) {
  known_->resize(states_.size() + 2 * params_.size());
  TORCH_CHECK_VALUE(groups.size() == params_.size(),
                    "FusedStepper: expected groups to have one element per parameter, ",
                    params_.size(), ", got ", groups.size());
  check_storage(storage_, params_);
  const auto length = static_cast<int64_t>(params_.size());
  const OutsideCapture outside(options(at::kFloat).device());
  steps_ = outside.kept(at::zeros({length}, options(at::kFloat)));
  groups_ = at::tensor(groups, at::TensorOptions(at::kInt));
  ticket_ = outside.kept(at::zeros({}, options(at::kInt)));
  if (rule_of(algorithm).averages) norm_averages_ = outside.kept(at::zeros_like(steps_));
}

at::TensorOptions FusedStepper::options(at::ScalarType dtype) const {
  return at::TensorOptions(dtype).device(params_.empty() ? at::kCPU : params_.front().device());
}

at::ScalarType FusedStepper::state_type(const Tensor& param) const {
  return param.scalar_type() == at::kDouble ? at::kDouble : storage_.state_dtype;
}

int64_t FusedStepper::kept_states() const {
  return params_.empty() ? 0 : static_cast<int64_t>(states_.size() / params_.size());
}

bool FusedStepper::joins_norms() const {
  return algorithm_ == StepAlgorithm::kLambUpdate && hyper_.has(kMaxGradNorm);
}

std::vector<Tensor> FusedStepper::states(size_t i) const {
  std::vector<Tensor> found;
  for (int64_t s = 0; s < kept_states(); ++s) found.push_back(states_[s * params_.size() + i]);
  if (!found.empty() && !found.front().defined()) found.clear();
  return found;
}

Tensor FusedStepper::step_count(size_t i) const {
  return steps_.select(0, static_cast<int64_t>(i));
}

Tensor FusedStepper::norm_average(size_t i) const {
  return norm_averages_.defined() ? norm_averages_.select(0, static_cast<int64_t>(i)) : Tensor();
}

void FusedStepper::set_state(size_t i, const std::vector<Tensor>& states, const Tensor& step_count,
                             const Tensor& norm_average) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(states.size()) == kept_states(),
                    "FusedStepper::set_state: expected ", kept_states(), " states, got ",
                    states.size());
  at::NoGradGuard no_grad;
  const Tensor& param = params_[i];
  const auto dtype = state_type(param);
  for (size_t s = 0; s < states.size(); ++s) {
    states_[s * params_.size() + i] =
        states[s].defined() ? states[s].to(param.device(), dtype) : at::zeros_like(param, dtype);
  }
  has_states_[i] = true;
  this->step_count(i).copy_(step_count);
  if (norm_averages_.defined() && norm_average.defined()) {
    this->norm_average(i).copy_(norm_average);
  }
}

/// The parameters that have a grad for the first time, and need states: for stochastic rounding the
/// count of steps, by which chance is drawn.
std::vector<size_t> FusedStepper::without_states(const Lists& lists) const {
  std::vector<size_t> found;
  const bool keep_states = kept_states() > 0 || storage_.stochastic_rounding;
  for (size_t i = 0; keep_states && i < params_.size(); ++i) {
    if (lists.grads[i].defined() && !has_states_[i]) found.push_back(i);
  }
  return found;
}

void FusedStepper::make_states(const Lists& lists) {
  const std::vector<size_t> fresh = without_states(lists);
  if (fresh.empty()) return;
  const bool takes_meta = is_meta(steps_);
  for (const size_t i : fresh) {
    check_memory("step", "params", i, params_[i], takes_meta);
    check_memory("step", "grads", i, lists.grads[i], takes_meta);
    TORCH_CHECK_TYPE(params_[i].is_floating_point(), "step: expected params[", i,
                     "] to be float16, bfloat16, float32 or float64, got ",
                     params_[i].scalar_type());
  }
  const OutsideCapture outside(steps_.device());
  for (const size_t i : fresh) {
    const auto dtype = state_type(params_[i]);
    for (int64_t s = 0; s < kept_states(); ++s) {
      states_[s * params_.size() + i] = outside.kept(at::zeros_like(params_[i], dtype));
    }
    has_states_[i] = true;
    new_states_.push_back(static_cast<int64_t>(i));
  }
}

StepScalars FusedStepper::scalars(const StepInputs& step) const {
  StepScalars scalars{steps_, hyper_.rows(), groups_, step.grad_factor, step.skip};
  if (norm_averages_.defined()) scalars.norm_averages = norm_averages_;
  scalars.stochastic_rounding = storage_.stochastic_rounding;
  scalars.ticket = ticket_;
  scalars.lrs = hyper_.lrs();
  return scalars;
}

StepLists FusedStepper::step_lists(const Lists& lists) const {
  return {lists.grads, params_, states_, lists.model_params, known_.get(), lists.unscaled};
}

/// Float32 scalars on the parameters' device.
FusedStepper::StepInputs FusedStepper::on_device(const StepInputs& step) const {
  const auto moved = [&](const std::optional<Tensor>& scalar) {
    return scalar ? std::optional(scalar->to(steps_.device(), at::kFloat, /*non_blocking=*/true))
                  : std::nullopt;
  };
  return {moved(step.grad_factor), moved(step.skip)};
}

void FusedStepper::step(const StepInputs& step) {
  Borrowed grads(params_.size());
  for (size_t i = 0; i < params_.size(); ++i) grads.set(i, params_[i].grad());
  this->step({grads}, step);
  if (step.grad_factor) leave_unscaled(grads, on_device(step));
}

/// A step that is skipped leaves them scaled.
void FusedStepper::leave_unscaled(at::TensorList grads, const StepInputs& step) {
  at::NoGradGuard no_grad;
  Tensor factor = *step.grad_factor;
  if (step.skip) factor = at::where(step.skip->ne(0), at::ones_like(factor), factor);
  ops::unscale(grads, grads, factor, at::zeros_like(factor));
}

void FusedStepper::step(const Lists& lists, const StepInputs& given) {
  const bool has_grads = std::any_of(lists.grads.begin(), lists.grads.end(),
                                     [](const Tensor& grad) { return grad.defined(); });
  if (!has_grads) return;
  at::NoGradGuard no_grad;
  const StepInputs step = on_device(given);
  make_states(lists);
  count_empty(lists, step);
  if (algorithm_ == StepAlgorithm::kLambUpdate) return step_lamb(lists, step);
  StepScalars scalars = this->scalars(step);
  if (norm_averages_.defined()) scalars.update_norms = norms_of_grads(lists, step);
  fused_step(algorithm_, step_lists(lists), scalars);
}

/// The steps of empty parameters, which kernels do not see: shards of DTensors may be empty.
void FusedStepper::count_empty(const Lists& lists, const StepInputs& step) {
  for (size_t i = 0; i < params_.size(); ++i) {
    if (params_[i].numel() != 0 || !lists.grads[i].defined()) continue;
    const Tensor count = step_count(i);
    step.skip ? count.add_(step.skip->reshape({}).eq(0)) : count.add_(1);
  }
}

/// Each one's, unscaled.
Tensor FusedStepper::norms_of_grads(const Lists& lists, const StepInputs& step) const {
  std::vector<Tensor> scaled = lists.grads.vec(), unscaled(scaled.size());
  for (const int64_t i : lists.unscaled) std::swap(scaled[i], unscaled[i]);
  const Tensor norms = multiplied(std::get<1>(ops::l2norm(scaled, true)), step.grad_factor);
  return lists.unscaled.empty() ? norms : norms.add(std::get<1>(ops::l2norm(unscaled, true)));
}

void FusedStepper::step_lamb(const Lists& lists, const StepInputs& step) {
  StepScalars scalars = this->scalars(step);
  if (joins_norms()) {
    const Tensor norm = multiplied(std::get<0>(ops::l2norm(lists.grads)), step.grad_factor);
    scalars.update_norms = norm.expand_as(steps_).contiguous();
  }
  std::vector<Tensor> updates(params_.size());
  for (size_t i = 0; i < params_.size(); ++i) {
    const bool wide = params_[i].scalar_type() == at::kDouble;
    if (lists.grads[i].defined()) {
      updates[i] = at::empty_like(params_[i], wide ? at::kDouble : at::kFloat);
    }
  }
  std::vector<Tensor> states = states_;
  states.insert(states.end(), updates.begin(), updates.end());
  fused_step(algorithm_, {lists.grads, params_, states, {}, nullptr, lists.unscaled}, scalars);
  scalars.grad_factor.reset();
  scalars.param_norms = std::get<1>(ops::l2norm(params_, true));
  scalars.update_norms = std::get<1>(ops::l2norm(updates, true, step.skip));
  fused_step(StepAlgorithm::kLambApply, {updates, params_, {}, lists.model_params}, scalars);
}

}  // namespace torchamp
