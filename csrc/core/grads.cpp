// The part of OptimizerState that knows of the grads of all its parameters: docs/grads.md.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/ops.h>

#include <algorithm>
#include <utility>

#include "core/autograd_meta.h"
#include "core/optimizer_state.h"
#include "ops/backward_report.h"
#include "ops/unscale_pass.h"

namespace torchamp::core {
namespace {

using at::Tensor;

/// A float32 grad shaped (and if sparse, indexed) like `scaled_grad`.
Tensor empty_master_grad(const Tensor& scaled_grad, const Tensor& master) {
  const auto options = scaled_grad.options().dtype(master.scalar_type());
  if (!scaled_grad.is_sparse()) return at::empty_like(scaled_grad, options.layout(at::kStrided));
  const Tensor values = at::empty_like(scaled_grad._values(), options.layout(at::kStrided));
  return at::_sparse_coo_tensor_unsafe(scaled_grad._indices(), values, scaled_grad.sizes(),
                                       options.layout(at::kSparse))
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

}  // namespace

// ---- what the program has done

void OptimizerState::update_grads() {
  for (const auto& param : params_) param->grad.discard_refused();
  notice();
}

void OptimizerState::notice() {
  at::NoGradGuard no_grad;
  thread_ = std::this_thread::get_id();
  for (const auto& param : params_) {
    const bool had_contributed = param->grad.has_contributed();
    if (!param->grad.notice(shows_grads_) || !had_contributed) continue;
    for (OptimizerState* user : param->users) user->had_drops_ = true;
  }
  if (!std::exchange(had_drops_, false)) return;
  const auto is_checked = [](const auto& param) {
    return param->grad.state() == GradState::kChecked;
  };
  norm_.reset();
  if (!have_contributed()) {
    forget_backwards();
  } else if (std::none_of(params_.begin(), params_.end(), is_checked)) {
    factor_.reset();
  }
}

// ---- grads of backwards without the optimizer

void OptimizerState::watch_strays() {
  update_grads();
  for (const auto& param : params_) param->grad.watch_stray();
}

void OptimizerState::note_strays(bool is_scaled) {
  for (const auto& param : params_) {
    if (is_scaled) param->grad.note_stray();
  }
}

/// set_aside: also those that the next backward of the optimizer sets aside.
void OptimizerState::check_no_strays(const char* function, bool set_aside) const {
  for (const auto& param : params_) {
    const bool counts = set_aside || !param->grad.is_set_aside();
    TORCH_CHECK(!counts || !param->grad.has_stray(), function,
                ": expected grads of backwards in scale_loss's that were given this optimizer, got "
                "one, of sizes ",
                param->model.sizes(),
                ", of a scale_loss that was not; give it all optimizers whose parameters its loss "
                "reaches, or zero their grads before their own backward");
  }
}

// ---- an open backward

void OptimizerState::open_grads() {
  at::NoGradGuard no_grad;
  unscale();
  const bool may_refuse = overflows_.may_be_any();
  for (const auto& param : params_) {
    const Tensor& grad = grad_of(param->model);
    const bool is_narrow = !param->has_master() && param->model.element_size() == 2;
    if (may_refuse && is_narrow && param->grad.is_left()) {
      // The check of 16-bit sums would count the same overflow again.
      values_of(grad).masked_fill_(overflows_.found_inf().to(grad.device(), at::kBool), 0);
    }
    param->grad.open();
  }
}

void OptimizerState::take_grads() {
  unscale();
  for (const auto& param : params_) param->grad.take();
}

void OptimizerState::restore_grads() {
  for (const auto& param : params_) {
    if (param->grad.is_open()) param->grad.cancel();
  }
}

bool OptimizerState::has_new_grads() const {
  return std::any_of(params_.begin(), params_.end(),
                     [](const auto& param) { return param->grad.is_new(); });
}

/// Which a later backward may have added to.
bool OptimizerState::has_finished_grads() const {
  return std::any_of(params_.begin(), params_.end(), [](const auto& param) {
    return param->grad.is_left() && param->grad.state() != GradState::kScaled;
  });
}

/// Ends an open backward whose grads stay scaled.
void OptimizerState::delay(const std::shared_ptr<const Scaling>& scaling) {
  for (const auto& param : params_) param->grad.delay(scaling);
  scaling_ = scaling;
}

// ---- what unscales

/// The scalings of grads that are kScaled which `scaler` does not scale by now. The optimizer's own
/// last one is among them even if no grad has it, so that all ranks find the same number.
std::vector<std::shared_ptr<const Scaling>> OptimizerState::other_scalings(
    const LossScaler& scaler) const {
  std::vector<std::shared_ptr<const Scaling>> found;
  const auto add = [&](const std::shared_ptr<const Scaling>& scaling) {
    if (scaling == nullptr || scaling->by->is_still(scaler.loss_scale_tensor())) return;
    if (std::find(found.begin(), found.end(), scaling) == found.end()) found.push_back(scaling);
  };
  add(scaling_);
  for (const auto& param : params_) add(param->grad.scaling());
  return found;
}

/// The grads that `scaling` has scaled.
Tensor OptimizerState::unscale(const Scaling& scaling) {
  for (const auto& param : params_) {
    if (param->grad.scaling().get() == &scaling) param->grad.reopen();
  }
  return finish(scaling.by->loss_scale(), /*is_identity=*/false, {}, nullptr, scaling.loss);
}

/// Not while grads accumulate over several backwards: each may have its own scale. Nor for views of
/// a bucket: the reducer replaces them when it rebuilds its buckets, in a later forward.
bool OptimizerState::can_check_only() const {
  bool any = false;
  for (const auto& param : params_) {
    if (!lazy_ || !param->has_master()) continue;
    const Grad& grad = param->grad;
    if (grad.state() == GradState::kUnscaled || grad.sum_before().defined()) return false;
    if (grad.is_open() && !grad.can_stay()) return false;
    any = true;
  }
  return any;
}

/// Whether autograd's grads of an open backward are what the step uses, since their scale is 1.
bool OptimizerState::can_leave_unscaled() const {
  return !shows_grads_ && std::all_of(params_.begin(), params_.end(), [](const auto& param) {
    const Grad& grad = param->grad;
    if (!grad.is_open()) return grad.state() != GradState::kUnscaled || !param->has_master();
    return !grad.sum_before().defined() &&
           !(param->has_master() && grad_of(param->master).defined());
  });
}

void OptimizerState::leave_unscaled() {
  for (const auto& param : params_) {
    if (!param->grad.is_open()) continue;
    const Tensor& grad = grad_of(param->model);
    grad.defined() ? param->grad.finish(grad, /*shows=*/false) : param->grad.cancel();
  }
}

/// Makes all grads of masters float32 if one is: code that reduces them together takes one dtype.
void OptimizerState::widen_grads() {
  for (const auto& param : params_) {
    const Tensor& grad = grad_of(param->model);
    const bool is_narrow = param->has_master() && param->grad.state() == GradState::kUnscaled &&
                           grad.defined() && grad.scalar_type() != param->master.scalar_type();
    if (is_narrow) param->grad.finish(grad.to(param->master.scalar_type()), shows_grads_);
  }
}

/// Unscales the grads that are kOpen, adding to those of earlier backwards, or only checks them,
/// or, where nothing has scaled them and nothing is to be added, leaves them as they are.
/// `loss_scale`: float32 scalar on the device; `is_identity`: it is 1. `found_before`: float32
/// scalar on the device, counts as an overflow unless 0 or undefined. `moved`: the scale to update;
/// may hold the loss_scale. `loss`: the scaled one, a float32 scalar on the device, for the report;
/// may be undefined. Returns a new float32 scalar on the device: 1 if any is not finite or
/// found_before is not 0; undefined if nothing was checked.
Tensor OptimizerState::finish(const Tensor& loss_scale, bool is_identity,
                              const Tensor& found_before, const DynamicScale* moved,
                              const Tensor& loss) {
  at::NoGradGuard no_grad;
  last_report_ = nullptr;
  if (is_identity && can_leave_unscaled()) {
    leave_unscaled();
    return found_before;
  }
  const bool checks_only = !is_identity && can_check_only();
  UnscalePass pass(params_.size());
  std::vector<Result> results;
  for (size_t i = 0; i < params_.size(); ++i) {
    Param& param = *params_[i];
    if (!param.grad.is_open()) continue;
    Tensor scaled = param.grad.scaled();
    if (!scaled.defined()) {
      param.grad.cancel();
    } else if (checks_only && param.has_master()) {
      pass.check(i, grad_of(param.model));
      param.grad.check();
    } else {
      results.push_back(route(param, i, std::move(scaled), pass));
    }
  }
  BackwardEnd end;
  end.found_before = found_before;
  end.moved = moved;
  end.loss = loss;
  const Tensor found_inf = run(pass, loss_scale, std::move(end), checks_only);
  for (const Result& result : results) result.param.grad.finish(sum_of(result), shows_grads_);
  widen_grads();
  return found_inf;
}

Tensor OptimizerState::run(const UnscalePass& pass, const Tensor& loss_scale, BackwardEnd end,
                           bool checks_only) {
  const auto floats = loss_scale.options();
  end.found_inf = at::empty({}, floats);
  end.inv_scale = at::empty({}, floats);
  if (checks_only && wants_norm_ && pass.checks_last()) end.norm = at::empty({}, floats);
  const auto report = acquire_report(loss_scale.device());
  if (report != nullptr) end.report = report->bytes();
  const auto count = static_cast<int64_t>(params_.size());
  const Tensor flags = overflows_.lend(end, count, loss_scale.device());
  pass.run(loss_scale, flags, end);
  overflows_.take_back(end, flags);
  last_report_ = report;
  if (checks_only) factor_ = end.inv_scale;
  if (checks_only) norm_ = end.norm;
  return end.found_inf;
}

// ---- grads that are kChecked, and steps that use them

void OptimizerState::set_lazy(bool lazy) {
  if (!lazy && !is_open_) notice();
  if (!lazy) unscale();
  lazy_ = lazy;
}

void OptimizerState::check_not_written(const Param& param) const {
  const Tensor& grad = grad_of(param.model);
  TORCH_CHECK(!grad.defined() || !param.grad.is_new(),
              "expected the grad of a model's parameter, of sizes ", param.model.sizes(),
              ", to be unmodified since scale_loss, which with materialize_master_grads=False "
              "leaves it scaled, got a modified one; clip with amp.clip_grad_norm_, or modify the "
              "grads of amp.master_params");
}

void OptimizerState::unscale() {
  if (!is_checked()) return;
  at::NoGradGuard no_grad;
  std::vector<Tensor> scaled, made;
  std::vector<Param*> params;
  for (const auto& param : params_) {
    if (param->grad.state() != GradState::kChecked) continue;
    check_not_written(*param);
    const Tensor& grad = grad_of(param->model);
    scaled.push_back(grad);
    made.push_back(at::empty_like(grad, grad.options().dtype(param->master.scalar_type())));
    params.push_back(param.get());
  }
  ops::unscale(scaled, made, factor_, at::zeros_like(factor_));
  for (size_t k = 0; k < params.size(); ++k) params[k]->grad.finish(made[k], shows_grads_);
  factor_.reset();
  norm_.reset();
}

Tensor OptimizerState::norm_of_checked() {
  wants_norm_ = true;
  if (!is_checked()) return norm_;
  std::vector<Tensor> grads;
  for (const auto& param : params_) {
    if (param->grad.state() != GradState::kChecked) continue;
    check_not_written(*param);
    grads.push_back(grad_of(param->model));
  }
  return norm_.defined() ? norm_ : std::get<0>(ops::l2norm(grads));
}

void OptimizerState::step(FusedStepper& stepper, const Tensor& skip) {
  at::NoGradGuard no_grad;
  if (stepper.joins_norms()) unscale();
  const std::vector<Tensor>& stepped = stepper.params();
  Borrowed grads(stepped.size()), models(stepped.size());
  std::vector<int64_t> unscaled, scaled;
  size_t next = 0;
  for (size_t k = 0; k < stepped.size(); ++k) {
    const auto is_it = [&](const auto& param) { return param->master.is_same(stepped[k]); };
    if (next >= params_.size() || !is_it(params_[next])) {
      next = std::find_if(params_.begin(), params_.end(), is_it) - params_.begin();
    }
    const Param& param = *params_.at(next++);
    const bool is_checked = param.grad.state() == GradState::kChecked;
    if (is_checked) check_not_written(param);
    if (!param.grad.is_usable()) continue;
    grads.set(k, grad_of(param.model));
    if (param.has_master() && !param.is_borrowed) models.set(k, param.model);
    (is_checked ? scaled : unscaled).push_back(static_cast<int64_t>(k));
  }
  if (unscaled.empty() && scaled.empty()) return;
  FusedStepper::StepInputs step;
  if (skip.defined()) step.skip = skip;
  if (scaled.empty()) unscaled.clear();
  if (!scaled.empty()) step.grad_factor = factor_;
  stepper.step({grads, models, unscaled}, step);
  for (const auto& param : params_) {
    if (param->has_master()) param->mark_synced();
  }
}

}  // namespace torchamp::core
