#include "core/borrow.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torchamp/ops.h>

#include <utility>

#include "ops/autograd_meta.h"
#include "ops/unscale_pass.h"

namespace torchamp::core {
namespace {

using at::Tensor;

void take_contents(const Tensor& tensor, const Tensor& of) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(of.getIntrusivePtr());
}

}  // namespace

/// The params' grads: float32 where the next step uses them, 16-bit ones cast in one launch.
std::vector<Tensor> Borrow::lent_grads() const {
  std::vector<Tensor> grads, narrow, wide;
  for (const auto& param : params_) {
    const bool is_lent = param->has_master() && !param->is_borrowed;
    Tensor& grad = grads.emplace_back();
    if (!is_lent) continue;
    const bool is_usable = param->grad.is_usable();
    if (is_usable || grads_ != LentGrads::kStep) grad = grad_of(param->model);
    if (!is_usable || !grad.defined() || grads_ == LentGrads::kNone) continue;
    if (grad.scalar_type() == at::kFloat) continue;
    if (grad.layout() != at::kStrided) {
      grad = grad.to(at::kFloat);
      continue;
    }
    narrow.push_back(grad);
    grad = wide.emplace_back(empty_like(grad, at::kFloat));
  }
  if (!narrow.empty()) ops::copy_cast(narrow, wide);
  return grads;
}

void Borrow::enter(at::TensorList cast) {
  const c10::InferenceMode off(false);  // tensors made in it cannot be written outside of it
  const at::NoGradGuard no_grad;
  const std::vector<Tensor> grads = lent_grads();
  lent_.reserve(params_.size());
  for (size_t i = 0; i < params_.size(); ++i) {
    const auto& param = params_[i];
    if (!param->has_master() || param->is_borrowed) continue;
    Tensor& grad = param->model.mutable_grad();
    Tensor own = std::exchange(grad, grads[i]);
    lent_.push_back({param, param->model.variable_data(), std::move(own), Mark(grad)});
    take_contents(param->model, param->master);
    param->is_borrowed = true;
    set_grad_dtype(param->model);
  }
  for (const Tensor& tensor : cast) {
    if (!c10::isReducedFloatingType(tensor.scalar_type())) continue;
    const Tensor wide = tensor.variable_data().to(at::kFloat);
    widened_.push_back({tensor, tensor.variable_data(), wide});
    take_contents(tensor, wide);
  }
}

Borrow::~Borrow() {
  try {
    leave();
  } catch (const std::exception&) {  // of a copy: the contents are back
  }
}

void Borrow::leave() {
  if (lent_.empty() && widened_.empty()) return;
  const at::NoGradGuard no_grad;
  const std::vector<Lent> lent = std::exchange(lent_, {});
  std::vector<Tensor> replaced, replaced_masters, masters, models;
  for (const Widened& each : std::exchange(widened_, {})) {
    masters.push_back(each.tensor.is_alias_of(each.wide) ? each.wide : each.tensor.variable_data());
    models.push_back(each.contents);
    take_contents(each.tensor, each.contents);
  }
  for (const Lent& each : lent) {
    const Param& param = *each.param;
    if (!param.model.is_alias_of(param.master)) {  // by `.data`
      replaced.push_back(param.model.variable_data());
      replaced_masters.push_back(param.master);
    }
    take_contents(param.model, each.contents);
    Tensor& grad = param.model.mutable_grad();
    if (each.lent.is_unchanged(grad)) grad = each.grad;
    set_grad_dtype(param.model);
    each.param->is_borrowed = false;
    masters.push_back(param.master);
    models.push_back(each.contents);
  }
  for (size_t i = 0; i < replaced.size(); ++i) replaced_masters[i].copy_(replaced[i]);
  // Not counted as a write: what has written the parameter has counted it, or chosen not to.
  ops::copy_cast(masters, models);
  for (const Lent& each : lent) each.param->mark_synced();
}

}  // namespace torchamp::core
