#include "core/one_pass.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/ops.h>

#include <algorithm>

#include "ops/autograd_meta.h"
#include "ops/finish_backward.h"
#include "ops/unscale_pass.h"

namespace torchamp::core {

using at::Tensor;

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
  forget();
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

void OnePass::note_drops() {
  norm_.reset();
  const bool has_some = std::any_of(params_.begin(), params_.end(), [](const auto& param) {
    return param->grad.state() == GradState::kChecked;
  });
  if (!has_some) forget();
}

void OnePass::forget() {
  factor_.reset();
  norm_.reset();
}

}  // namespace torchamp::core
