// The part of OptimizerState that knows where grads are: docs/grads.md.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/ops.h>

#include <algorithm>
#include <utility>

#include "core/autograd_meta.h"
#include "core/backward_report.h"
#include "core/optimizer_state.h"
#include "core/outside_capture.h"
#include "core/unscale_pass.h"

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

/// Whether it is a view of memory that a reducer writes, as with gradient_as_bucket_view.
bool is_part_of_a_bucket(const Tensor& grad) {
  return grad.has_storage() && grad.storage().nbytes() > grad.nbytes();
}

/// The unscaled sum of the backwards before the open one.
Tensor earlier(const Param& param) {
  const Grad& before = param.before;
  if (before.state == GradState::kScaled || param.has_master()) return before.unscaled;
  return param.before_grad;
}

/// Whether the grad has contributions of a backward that was not given the optimizer. Once more
/// have been added to those, `stray` is of no tensor.
bool has_stray(const Param& param) {
  const Tensor& grad = grad_of(param.model);
  if (!param.is_stray || !grad.defined()) return false;
  return param.stray.is_same(Tensor()) || param.stray.is_unchanged(grad);
}

/// Whether the optimizer's next backward sets the model's grad aside for good.
bool is_set_aside(const Param& param) {
  return param.has_master() && param.grad.state == GradState::kNone;
}

/// Drops what the open backward has found.
void forget_before(Param& param) {
  param.before = Grad();
  param.before_grad.reset();
}

/// Puts back what the open backward has found.
void restore(Param& param) {
  param.model_grad() = std::exchange(param.before_grad, Tensor());
  param.grad = std::exchange(param.before, Grad());
}

}  // namespace

// ---- what the program has done

void OptimizerState::update_grads() {
  for (const auto& param : params_) {
    if (param->refused.defined()) discard_refused(*param);
  }
  notice();
}

void OptimizerState::notice() {
  thread_ = std::this_thread::get_id();
  for (const auto& param : params_) notice(*param);
  if (!std::exchange(had_drops_, false)) return;
  const auto is_checked = [](const auto& param) {
    return param->grad.state == GradState::kChecked;
  };
  if (!have_contributed()) {
    forget_backwards();
  } else if (std::none_of(params_.begin(), params_.end(), is_checked)) {
    factor_.reset();
  }
}

void OptimizerState::notice(Param& param) {
  const Tensor& grad = grad_of(param.model);
  const GradState state = param.grad.state;
  if (state == GradState::kOpen) return;
  if (!param.has_master() || state == GradState::kScaled || state == GradState::kChecked) {
    if (state != GradState::kNone && !grad.defined()) drop(param);
    return;
  }
  const Tensor& lent = grad_of(param.master);
  if (lent.defined() && !lent.is_same(param.grad.unscaled)) return take_over(param, lent);
  if (state == GradState::kNone) {
    const bool is_new = grad.defined() && !param.grad.left.is_same(grad);
    const bool is_scaled = param.is_stray && param.stray.is_same(grad);
    if (is_new && !is_scaled) take_over(param, grad);
  } else if (!grad.defined() || (shows_grads_ && !lent.defined())) {
    drop(param);
  } else if (!grad.is_same(param.grad.unscaled)) {
    take_over(param, grad);
  }
}

/// `grad`, unscaled, becomes what the step uses for the master; the model shows it too, so that
/// what the program does to it is done to the step.
void OptimizerState::take_over(Param& param, const Tensor& grad) const {
  param.grad.move(GradState::kUnscaled);
  const Tensor plain = grad.requires_grad() ? grad.detach() : grad;
  param.grad.unscaled = plain.to(param.master.scalar_type());
  param.model_grad() = param.grad.unscaled;
  if (shows_grads_) param.master.mutable_grad() = param.grad.unscaled;
  param.grad.left = Mark(param.grad.unscaled);
}

/// Drops the grad that a skipped step has left, unless the program has put another there.
void OptimizerState::discard_refused(Param& param) const {
  const Tensor refused = std::exchange(param.refused, Tensor());
  Tensor& grad = param.model_grad();
  if (!grad.defined() || !param.grad.left.is_same(grad)) return;
  if (refused.is_cpu()) {
    grad.reset();
    param.grad = Grad();
  } else {
    at::NoGradGuard no_grad;
    values_of(grad).masked_fill_(refused.to(grad.device(), at::kBool), 0);
  }
}

/// The program has zeroed the grad.
void OptimizerState::drop(Param& param) {
  for (OptimizerState* user : param.users) user->had_drops_ |= param.has_contributed();
  if (param.grad.state == GradState::kOpen) {
    forget_before(param);
  } else {
    if (param.grad.state == GradState::kChecked) norm_.reset();
    if (param.has_master() && grad_of(param.model).is_same(param.grad.unscaled)) {
      param.model_grad().reset();
    }
    param.grad.move(GradState::kNone);
    param.grad = Grad();
  }
  if (param.has_master()) param.master.mutable_grad().reset();
  param.refused.reset();
  param.is_stray = false;
}

// ---- grads of backwards without the optimizer

void OptimizerState::watch_strays() {
  update_grads();
  for (const auto& param : params_) {
    if (param->grad.state == GradState::kOpen || has_stray(*param)) continue;
    param->is_stray = false;
    param->stray = Mark(grad_of(param->model));
  }
}

void OptimizerState::note_strays(bool is_scaled) {
  for (const auto& param : params_) {
    const Tensor& grad = grad_of(param->model);
    const bool is_given = param->grad.state == GradState::kOpen;
    const bool is_own = param->grad.left.is_unchanged(grad);  // of a scale_loss that was open, too
    if (is_given || is_own || !is_scaled || !grad.defined()) continue;
    if (param->stray.is_unchanged(grad)) continue;
    const bool is_kept = param->is_stray && param->stray.is_same(Tensor());
    param->is_stray = true;
    if (!is_kept) param->stray = Mark(grad);
  }
}

/// set_aside: also those that the next backward of the optimizer sets aside.
void OptimizerState::check_no_strays(const char* function, bool set_aside) const {
  for (const auto& param : params_) {
    const bool counts = set_aside || !is_set_aside(*param);
    TORCH_CHECK(!counts || !has_stray(*param), function,
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
  const bool may_refuse = may_have_overflowed();
  for (const auto& param : params_) {
    const Tensor& grad = grad_of(param->model);
    const bool is_narrow = !param->has_master() && param->model.element_size() == 2;
    if (may_refuse && is_narrow && grad.defined() && param->grad.left.is_same(grad)) {
      // The check of 16-bit sums would count the same overflow again.
      values_of(grad).masked_fill_(found_inf_.to(grad.device(), at::kBool), 0);
    }
    open(*param);
  }
}

/// Grads that are kScaled stay where they are: the backward adds to them, and
/// DistributedDataParallel reduces the sum. Strays of a master are set aside for good.
void OptimizerState::open(Param& param) {
  Tensor& grad = param.model_grad();
  if (has_stray(param)) {
    if (is_set_aside(param)) {
      grad.reset();
    } else {
      param.stray = Mark();
    }
  } else {
    param.is_stray = false;
  }
  const bool stays = param.grad.state == GradState::kScaled;
  param.before = std::exchange(param.grad, Grad());
  param.grad.move(GradState::kOpen);
  if (!grad.defined()) return;
  const bool is_copied = stays || is_part_of_a_bucket(grad);
  const bool was_left = param.before.left.is_same(grad);
  param.before_grad = is_copied ? grad.detach().clone() : grad;
  if (is_copied && was_left) param.before.left = Mark(param.before_grad);
  if (stays) {
    param.grad.left = Mark(grad);
  } else {
    grad.reset();
  }
}

void OptimizerState::take_grads() {
  unscale();
  for (const auto& param : params_) {
    param->grad = Grad();
    param->grad.move(GradState::kOpen);
  }
}

void OptimizerState::restore_grads() {
  for (const auto& param : params_) {
    if (param->grad.state == GradState::kOpen) restore(*param);
  }
}

bool OptimizerState::has_new_grads() const {
  return std::any_of(params_.begin(), params_.end(), [](const auto& param) {
    const Tensor& grad = grad_of(param->model);
    return grad.defined() && !param->grad.left.is_unchanged(grad);
  });
}

/// Which a later backward may have added to.
bool OptimizerState::has_finished_grads() const {
  return std::any_of(params_.begin(), params_.end(), [](const auto& param) {
    const Tensor& grad = grad_of(param->model);
    return grad.defined() && param->grad.left.is_same(grad) &&
           param->grad.state != GradState::kScaled;
  });
}

/// Ends an open backward whose grads stay scaled.
void OptimizerState::delay(const std::shared_ptr<const Scaling>& scaling) {
  for (const auto& param : params_) {
    const Tensor& grad = grad_of(param->model);
    if (!grad.defined()) {
      restore(*param);
      continue;
    }
    const bool is_new = !param->grad.left.is_unchanged(grad);
    param->grad.unscaled = earlier(*param);
    param->grad.scaling = is_new ? scaling : param->before.scaling;
    param->grad.left = Mark(grad);
    forget_before(*param);
    param->grad.move(GradState::kScaled);
  }
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
  for (const auto& param : params_) add(param->grad.scaling);
  return found;
}

/// The grads that are scaled so.
Tensor OptimizerState::unscale(const Scaling& scaling) {
  for (const auto& param : params_) {
    if (param->grad.scaling.get() != &scaling) continue;
    if (has_stray(*param)) param->stray = Mark();
    param->before = std::exchange(param->grad, Grad());
    param->grad.move(GradState::kOpen);
  }
  return finish(scaling.by->loss_scale(), {}, nullptr, scaling.loss);
}

/// To a grad written fresh, or added to in place. Where one of the two is sparse, the sum of both
/// is left to ATen: returns the addend of the fresh grad; else undefined.
Tensor OptimizerState::route(size_t i, UnscalePass& pass) const {
  Param& param = *params_[i];
  Tensor scaled = grad_of(param.model);
  if (scaled.is_sparse()) scaled = scaled.coalesce();
  const Tensor before = earlier(param);
  Tensor& result = param.grad.unscaled;
  if (before.defined() && !before.is_sparse() && !scaled.is_sparse()) {
    result = before;
    pass.accumulate(i, scaled, result);
    return {};
  }
  const bool in_place = !param.has_master() && !before.defined();
  result = in_place ? scaled : empty_master_grad(scaled, param.master);
  pass.write(i, scaled, result);
  return before;
}

/// Not while grads accumulate over several backwards: each may have its own scale. Nor for views of
/// a bucket: the reducer replaces them when it rebuilds its buckets, in a later forward.
bool OptimizerState::can_check_only() const {
  bool any = false;
  for (const auto& param : params_) {
    if (!param->has_master()) continue;
    const Tensor& grad = grad_of(param->model);
    const bool is_open = param->grad.state == GradState::kOpen;
    const Tensor& unscaled = is_open ? param->before.unscaled : param->grad.unscaled;
    if (unscaled.defined()) return false;
    if (grad.defined() && (grad.is_sparse() || is_part_of_a_bucket(grad))) return false;
    any = true;
  }
  return any && lazy_;
}

/// Unscales the grads that are kOpen, adding to those of earlier backwards, or only checks them.
/// `loss_scale`: float32 scalar on the device. `found_before`: float32 scalar on the device, counts
/// as an overflow unless 0 or undefined. `moved`: the scale to update; may hold the loss_scale.
/// `loss`: the scaled one, a float32 scalar on the device, for the report; may be undefined.
/// Returns a new float32 scalar on the device: 1 if any is not finite or found_before is not 0.
Tensor OptimizerState::finish(const Tensor& loss_scale, const Tensor& found_before,
                              const DynamicScale* moved, const Tensor& loss) {
  at::NoGradGuard no_grad;
  const bool checks_only = can_check_only();
  UnscalePass pass(params_.size());
  std::vector<std::pair<size_t, Tensor>> unscaled;  // with their addends
  for (size_t i = 0; i < params_.size(); ++i) {
    Param& param = *params_[i];
    if (param.grad.state != GradState::kOpen) continue;
    const Tensor& grad = grad_of(param.model);
    if (!grad.defined()) {
      restore(param);
    } else if (checks_only && param.has_master()) {
      pass.check(i, grad);
      forget_before(param);
      param.grad.left = Mark(grad);
      param.grad.move(GradState::kChecked);
    } else {
      unscaled.emplace_back(i, route(i, pass));
    }
  }
  BackwardEnd end;
  end.found_before = found_before;
  end.moved = moved;
  end.loss = loss;
  const Tensor found_inf = run(pass, loss_scale, std::move(end), checks_only);
  for (const auto& [i, addend] : unscaled) {
    Param& param = *params_[i];
    Tensor sum = std::exchange(param.grad.unscaled, Tensor());
    if (addend.defined()) sum = sum.is_sparse() ? addend.add(sum) : sum.add(addend);
    forget_before(param);
    param.grad.move(GradState::kUnscaled);
    param.model_grad() = sum;
    param.grad.left = Mark(sum);
    if (!param.has_master()) continue;
    param.grad.unscaled = sum;
    if (shows_grads_) param.master.mutable_grad() = sum;
  }
  return found_inf;
}

Tensor OptimizerState::run(const UnscalePass& pass, const Tensor& loss_scale, BackwardEnd end,
                           bool checks_only) {
  const auto count = static_cast<int64_t>(params_.size());
  const auto floats = loss_scale.options();
  end.found_inf = at::empty({}, floats);
  end.inv_scale = at::empty({}, floats);
  end.adds_per_tensor = found_inf_per_param_.defined();
  end.per_tensor =
      end.adds_per_tensor ? found_inf_per_param_ : at::empty({count}, floats.dtype(at::kByte));
  if (checks_only && wants_norm_ && pass.checks_last()) end.norm = at::empty({}, floats);
  const auto report = acquire_report(loss_scale.device());
  if (report != nullptr) end.report = report->bytes();
  const Tensor overflow_flags = take_overflow_flags(loss_scale.device());
  pass.run(loss_scale, overflow_flags, end);
  overflow_flags_ = overflow_flags;
  last_report_ = report;
  found_inf_per_param_ = end.per_tensor;
  if (checks_only) factor_ = end.inv_scale;
  if (checks_only) norm_ = end.norm;
  return end.found_inf;
}

Tensor OptimizerState::take_overflow_flags(at::Device device) {
  const auto count = static_cast<int64_t>(params_.size());
  const Tensor kept = std::exchange(overflow_flags_, {});
  if (kept.defined() && kept.size(0) == kFlagsHeader + count) return kept;
  const OutsideCapture outside(device);
  return outside.kept(make_overflow_flags(count, device));
}

// ---- grads that are kChecked, and steps that use them

void OptimizerState::set_lazy(bool lazy) {
  if (!lazy && !is_open_) notice();
  if (!lazy) unscale();
  lazy_ = lazy;
}

void OptimizerState::check_not_written(const Param& param) const {
  const Tensor& grad = grad_of(param.model);
  TORCH_CHECK(!grad.defined() || param.grad.left.is_unchanged(grad),
              "expected the grad of a model's parameter, of sizes ", param.model.sizes(),
              ", to be unmodified since scale_loss, got a modified one; "
              "clip with amp.clip_grad_norm_, or modify the grads of amp.master_params");
}

void OptimizerState::unscale() {
  if (!is_checked()) return;
  at::NoGradGuard no_grad;
  std::vector<Tensor> scaled, made;
  std::vector<Param*> params;
  for (const auto& param : params_) {
    if (param->grad.state != GradState::kChecked) continue;
    check_not_written(*param);
    const Tensor& grad = grad_of(param->model);
    scaled.push_back(grad);
    made.push_back(at::empty_like(grad, grad.options().dtype(param->master.scalar_type())));
    params.push_back(param.get());
  }
  ops::unscale(scaled, made, factor_, at::zeros_like(factor_));
  for (size_t k = 0; k < params.size(); ++k) take_over(*params[k], made[k]);
  factor_.reset();
  norm_.reset();
}

Tensor OptimizerState::norm_of_checked() {
  wants_norm_ = true;
  if (!is_checked()) return norm_;
  std::vector<Tensor> grads;
  for (const auto& param : params_) {
    if (param->grad.state != GradState::kChecked) continue;
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
    const bool is_checked = param.grad.state == GradState::kChecked;
    if (is_checked) check_not_written(param);
    const bool is_in_model = is_checked || !param.has_master();
    const Tensor& grad = is_in_model ? grad_of(param.model) : param.grad.unscaled;
    if (!grad.defined()) continue;
    grads.set(k, grad);
    if (param.has_master()) models.set(k, param.model);
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
