#include "core/grads.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "core/optimizer_state.h"
#include "ops/autograd_meta.h"
#include "ops/backward_report.h"
#include "ops/unscale_pass.h"

namespace torchamp::core {
namespace {

using at::Tensor;

/// A grad of the master's dtype shaped (and if sparse, indexed) like `scaled_grad`.
Tensor empty_master_grad(const Tensor& scaled_grad, const Tensor& master) {
  const at::ScalarType dtype = master.scalar_type();
  if (!scaled_grad.is_sparse()) return empty_like(scaled_grad, dtype);
  return at::_sparse_coo_tensor_unsafe(scaled_grad._indices(),
                                       empty_like(scaled_grad._values(), dtype),
                                       scaled_grad.sizes(), scaled_grad.options().dtype(dtype))
      ._coalesced_(true);
}

/// A grad that a pass makes: `sum`, to which `addend` is still to be added, unless it is undefined.
struct Result {
  Param& param;
  Tensor sum;
  Tensor addend;
};

/// To a grad written fresh, or added to in place. Where one of the two is sparse, the sum of both
/// is left to ATen.
Result route(Param& param, size_t i, Tensor scaled, UnscalePass& pass) {
  if (scaled.is_sparse()) scaled = scaled.coalesce();
  const Tensor& before = param.grad.sum_before();
  if (before.defined() && !before.is_sparse() && !scaled.is_sparse()) {
    const Tensor sum = before.to(param.master.scalar_type());
    pass.accumulate(i, scaled, sum);
    return {param, sum, {}};
  }
  const bool in_place = !param.has_master() && !before.defined();
  const Tensor fresh = in_place ? scaled : empty_master_grad(scaled, param.master);
  pass.write(i, scaled, fresh);
  return {param, fresh, before};
}

Tensor sum_of(const Result& result) {
  if (!result.addend.defined()) return result.sum;
  return result.sum.is_sparse() ? result.addend.add(result.sum) : result.sum.add(result.addend);
}

/// Whether autograd's grads of an open backward are what the step uses, if their scale is 1.
bool are_unscaled(const ParamList& params) {
  return std::all_of(params.begin(), params.end(), [](const auto& param) {
    const Grad& grad = param->grad;
    if (!grad.is_open()) return grad.state() != GradState::kUnscaled || !param->has_master();
    return !grad.sum_before().defined() &&
           !(param->has_master() && grad_of(param->master).defined());
  });
}

void finish_as_they_are(const ParamList& params) {
  for (const auto& param : params) {
    if (!param->grad.is_open()) continue;
    const Tensor& grad = grad_of(param->model);
    grad.defined() ? param->grad.finish(grad, /*shows=*/false) : param->grad.cancel();
  }
}

/// Makes a grad of earlier backwards float32, as those of the backward that ends: code that reduces
/// them together takes one dtype.
void widen(Param& param, bool shows) {
  const Tensor& grad = grad_of(param.model);
  const bool is_narrow = param.has_master() && param.grad.state() == GradState::kUnscaled &&
                         grad.scalar_type() != param.master.scalar_type();
  if (is_narrow) param.grad.finish(grad.to(param.master.scalar_type()), shows);
}

template <class Is>
bool any(const ParamList& params, const Is& is) {
  return std::any_of(params.begin(), params.end(),
                     [&](const auto& param) { return is(param->grad); });
}

}  // namespace

// ---- what they are

bool Grads::are_scaled() const {
  return any(params_,
             [](const Grad& grad) { return grad.is_open() || grad.state() == GradState::kScaled; });
}

bool Grads::are_open() const {
  return any(params_, std::mem_fn(&Grad::is_open));
}

bool Grads::have_contributed() const {
  return any(params_, std::mem_fn(&Grad::has_contributed));
}

bool Grads::are_missing() const {
  return !params_.empty() && !any(params_, std::mem_fn(&Grad::is_usable));
}

bool Grads::are_new() const {
  return any(params_, std::mem_fn(&Grad::is_new));
}

bool Grads::have_graphs() const {
  return std::any_of(params_.begin(), params_.end(), [](const auto& param) {
    const Tensor& grad = grad_of(param->model);
    return grad.defined() && grad.requires_grad();
  });
}

bool Grads::are_finished() const {
  return any(params_,
             [](const Grad& grad) { return grad.is_left() && grad.state() != GradState::kScaled; });
}

// ---- the program

bool Grads::update() {
  const at::NoGradGuard no_grad;
  seen_.clear();
  for (const auto& param : params_) {
    param->grad.discard_refused();
    if (!param->grad.notice(shows_)) continue;
    for (OptimizerState* user : param->users) user->grads().note_drop();
  }
  if (!std::exchange(had_drops_, false)) return false;
  one_pass_.note_drops();
  return !have_contributed();
}

void Grads::show() {
  unscale_checked();
  one_pass_.switch_to(false);
  shows_ = true;
}

void Grads::forget() {
  had_drops_ = false;
  scaling_.reset();
  one_pass_.note_drops();
}

// ---- strays

void Grads::watch_strays() {
  for (const auto& param : params_) param->grad.watch_stray();
  see();
}

void Grads::note_strays() {
  for (const auto& param : params_) param->grad.note_stray();
  see();
}

void Grads::see() {
  seen_.clear();
  for (const auto& param : params_) {
    seen_.push_back({param->model.unsafeGetTensorImpl(), Mark(grad_of(param->model))});
    if (!param->has_master()) continue;
    seen_.push_back({param->master.unsafeGetTensorImpl(), Mark(grad_of(param->master))});
  }
}

bool Grads::are_as_seen() const {
  return !seen_.empty() && std::all_of(seen_.begin(), seen_.end(), [](const Seen& seen) {
    return seen.grad.is_unchanged(seen.tensor->grad());
  });
}

void Grads::check_no_strays(const char* function, bool set_aside) const {
  for (const auto& param : params_) {
    const bool is_set_aside = param->has_master() && param->grad.state() == GradState::kNone;
    TORCH_CHECK((is_set_aside && !set_aside) || !param->grad.has_stray(), function,
                ": expected grads of backwards in scale_loss's that were given this optimizer, got "
                "one, of sizes ",
                param->model.sizes(),
                ", of a scale_loss that was not; give it all optimizers whose parameters its loss "
                "reaches, or zero their grads before their own backward");
  }
}

// ---- a backward

void Grads::open() {
  const at::NoGradGuard no_grad;
  unscale_checked();
  const bool may_refuse = overflows_.may_be_any();
  for (const auto& param : params_) {
    const bool is_narrow = !param->has_master() && param->model.element_size() == 2;
    if (may_refuse && is_narrow && param->grad.is_left()) {
      // The check of 16-bit sums would count the same overflow again.
      const Tensor& grad = grad_of(param->model);
      values_of(grad).masked_fill_(overflows_.found_inf().to(grad.device(), at::kBool), 0);
    }
    param->grad.open();
  }
}

void Grads::take() {
  unscale_checked();
  for (const auto& param : params_) param->grad.take();
}

void Grads::cancel() {
  for (const auto& param : params_) {
    if (param->grad.is_open()) param->grad.cancel();
  }
}

void Grads::delay(const ScalingPtr& scaling) {
  for (const auto& param : params_) param->grad.delay(scaling);
  scaling_ = scaling;
}

std::vector<Grads::ScalingPtr> Grads::other_scalings(const LossScaler& scaler) const {
  std::vector<ScalingPtr> found;
  const auto add = [&](const ScalingPtr& scaling) {
    if (scaling == nullptr || scaling->by->is_still(scaler.loss_scale_tensor())) return;
    if (std::find(found.begin(), found.end(), scaling) == found.end()) found.push_back(scaling);
  };
  add(scaling_);
  for (const auto& param : params_) add(param->grad.scaling());
  return found;
}

Tensor Grads::finish(const Scaling& scaling) {
  for (const auto& param : params_) {
    if (param->grad.scaling().get() == &scaling) param->grad.take();
  }
  BackwardEnd end;
  end.loss = scaling.loss;
  return finish(scaling.by->loss_scale(), /*is_identity=*/false, std::move(end));
}

Tensor Grads::finish(const Tensor& loss_scale, bool is_identity, BackwardEnd end) {
  const at::NoGradGuard no_grad;
  scaling_.reset();
  last_report_ = nullptr;
  if (is_identity && !shows_ && are_unscaled(params_)) {
    finish_as_they_are(params_);
    return end.found_before;
  }
  const bool checks_only = !is_identity && one_pass_.can_check();
  UnscalePass pass(params_.size());
  std::vector<Result> results;
  for (size_t i = 0; i < params_.size(); ++i) {
    Param& param = *params_[i];
    if (!param.grad.is_open()) continue;
    if (checks_only && param.has_master() && grad_of(param.model).defined()) {
      pass.check(i, grad_of(param.model));
      param.grad.check();
    } else if (Tensor scaled = param.grad.scaled(); scaled.defined()) {
      results.push_back(route(param, i, std::move(scaled), pass));
    } else {
      param.grad.cancel();
      widen(param, shows_);
    }
  }
  const Tensor found_inf = run(pass, loss_scale, std::move(end), checks_only);
  for (const Result& result : results) result.param.grad.finish(sum_of(result), shows_);
  return found_inf;
}

Tensor Grads::run(const UnscalePass& pass, const Tensor& loss_scale, BackwardEnd end,
                  bool checks_only) {
  const auto floats = loss_scale.options();
  end.found_inf = at::empty({}, floats);
  end.inv_scale = at::empty({}, floats);
  if (checks_only) one_pass_.lend(end, pass.checks_last());
  const auto report = acquire_report(loss_scale.device());
  if (report != nullptr) end.report = report->bytes();
  const auto count = static_cast<int64_t>(params_.size());
  const Tensor flags = overflows_.lend(end, count, loss_scale.device());
  pass.run(loss_scale, flags, end);
  overflows_.take_back(end, flags);
  last_report_ = report;
  if (checks_only) one_pass_.take_back(end);
  return end.found_inf;
}

}  // namespace torchamp::core
