#include "core/one_pass.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/ops.h>

#include <algorithm>

#include "core/optimizer_state.h"
#include "ops/autograd_meta.h"
#include "ops/finish_backward.h"
#include "ops/unscale_pass.h"

namespace torchamp::core {

using at::Tensor;

bool OnePass::has_grads() const {
  return is_on_ && std::any_of(params_.begin(), params_.end(), [](const auto& param) {
           return param->grad.state() == GradState::kChecked;
         });
}

bool OnePass::can_check() const {
  bool any = false;
  for (const auto& param : params_) {
    if (!is_on_ || !param->has_master()) continue;
    const Grad& grad = param->grad;
    if (grad.state() == GradState::kUnscaled || grad.sum_before().defined()) return false;
    if (grad.is_open() && !grad.can_stay()) return false;
    any = true;
  }
  return any;
}

Tensor OnePass::norm() {
  wants_norm_ = true;
  if (!has_grads()) return {};
  std::vector<Tensor> grads;
  for (const auto& param : params_) {
    if (param->grad.state() != GradState::kChecked) continue;
    check_not_written(*param);
    grads.push_back(grad_of(param->model));
  }
  return norm_.defined() ? norm_ : std::get<0>(ops::l2norm(grads));
}

void OnePass::unscale(bool shows) {
  if (!has_grads()) return;
  const at::NoGradGuard no_grad;
  std::vector<Tensor> scaled, made;
  std::vector<Param*> params;
  for (const auto& param : params_) {
    if (param->grad.state() != GradState::kChecked) continue;
    check_not_written(*param);
    const Tensor& grad = grad_of(param->model);
    scaled.push_back(grad);
    made.push_back(empty_like(grad, param->master.scalar_type()));
    params.push_back(param.get());
  }
  ops::unscale(scaled, made, factor_, at::zeros_like(factor_));
  for (size_t k = 0; k < params.size(); ++k) params[k]->grad.finish(made[k], shows);
  norm_.reset();
}

void OnePass::check_not_written(const Param& param) {
  const Tensor& grad = grad_of(param.model);
  TORCH_CHECK(!grad.defined() || !param.grad.is_new(),
              "expected the grad of a model's parameter, of sizes ", param.model.sizes(),
              ", to be unmodified since scale_loss, which with materialize_master_grads=False "
              "leaves it scaled, got a modified one; clip with amp.clip_grad_norm_, or modify the "
              "grads of amp.master_params");
}

void OnePass::lend(BackwardEnd& end, bool can_norm) const {
  if (wants_norm_ && can_norm) end.norm = at::empty({}, end.inv_scale.options());
}

void OnePass::take_back(const BackwardEnd& end) {
  factor_ = end.inv_scale;
  norm_ = end.norm;
}

void step_by(OptimizerState& state, FusedStepper& stepper, const Tensor& skip) {
  const at::NoGradGuard no_grad;
  if (stepper.joins_norms()) state.grads().unscale_checked();
  const ParamList& params = state.params();
  const std::vector<Tensor>& stepped = stepper.params();
  Borrowed grads(stepped.size()), models(stepped.size());
  std::vector<int64_t> unscaled, scaled;
  size_t next = 0;
  for (size_t k = 0; k < stepped.size(); ++k) {
    const auto is_it = [&](const auto& param) { return param->master.is_same(stepped[k]); };
    if (next >= params.size() || !is_it(params[next]))
      next = std::find_if(params.begin(), params.end(), is_it) - params.begin();
    const Param& param = *params.at(next++);
    const bool is_checked = param.grad.state() == GradState::kChecked;
    if (is_checked) OnePass::check_not_written(param);
    if (!param.grad.is_usable()) continue;
    grads.set(k, grad_of(param.model));
    if (param.has_master() && !param.is_borrowed) models.set(k, param.model);
    (is_checked ? scaled : unscaled).push_back(static_cast<int64_t>(k));
  }
  if (unscaled.empty() && scaled.empty()) return;
  FusedStepper::StepInputs inputs;
  if (skip.defined()) inputs.skip = skip;
  if (scaled.empty()) unscaled.clear();
  if (!scaled.empty()) inputs.grad_factor = state.grads().one_pass().factor();
  stepper.step({grads, models, unscaled}, inputs);
  for (const auto& param : params) {
    if (param->has_master()) param->mark_synced();
  }
}

}  // namespace torchamp::core
