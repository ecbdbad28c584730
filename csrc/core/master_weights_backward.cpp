// The part of MasterWeights that grads pass through.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/master_weights.h>

#include <utility>

#include "core/backward_report.h"
#include "core/outside_capture.h"
#include "core/versions.h"
#include "ops/borrowed.h"
#include "ops/finish_backward.h"

namespace torchamp {
namespace {

using at::Tensor;

/// The dense values of a sparse grad, so that ops can take it; a dense grad is its own.
Tensor values_of(const Tensor& grad) {
  return grad.is_sparse() ? grad._values() : grad;
}

/// A float32 grad shaped (and if sparse, indexed) like `scaled_grad`.
Tensor empty_master_grad(const Tensor& scaled_grad, const Tensor& master) {
  const auto options = scaled_grad.options().dtype(master.scalar_type());
  if (!scaled_grad.is_sparse()) return at::empty_like(scaled_grad, options.layout(at::kStrided));
  const Tensor values = at::empty_like(scaled_grad._values(), options.layout(at::kStrided));
  return at::_sparse_coo_tensor_unsafe(scaled_grad._indices(), values, scaled_grad.sizes(),
                                       options.layout(at::kSparse))
      ._coalesced_(true);
}

}  // namespace

/// For a parameter that is new.
void MasterWeights::make_room() {
  const size_t count = model_params_.size();
  has_contributed_.resize(count);
  if (open_) open_->resize(count);
  if (delayed_) {
    delayed_->bears.resize(count);
    delayed_->before.resize(count);
  }
  if (is_pending()) {
    pending_.grads.resize(count);
    pending_.versions.resize(count);
  }
}

void MasterWeights::prepare_backward() {
  drop_zeroed();
  materialize();
  open_.emplace(model_params_.size());
  for (size_t i = 0; i < model_params_.size(); ++i) {
    std::swap((*open_)[i], model_params_[i].mutable_grad());
  }
}

void MasterWeights::cancel_backward() {
  if (!open_) return;
  const std::vector<Tensor> found = *std::exchange(open_, std::nullopt);
  for (size_t i = 0; i < found.size(); ++i) model_params_[i].mutable_grad() = found[i];
}

void MasterWeights::delay_backward(Scaled scaled) {
  at::NoGradGuard no_grad;
  const std::vector<Tensor> before = collect();
  Delayed delayed{std::move(scaled), std::vector<bool>(before.size()), before};
  for (size_t i = 0; i < before.size(); ++i) {
    delayed.bears[i] = has_grad(i);
    if (!delayed.bears[i] || is_separate(i)) delayed.before[i].reset();
  }
  note_contributions(before);
  delayed_ = std::move(delayed);
}

/// A grad that stays in the model, though nothing was added to it, tells whether it was zeroed.
void MasterWeights::note_contributions(const std::vector<Tensor>& before) {
  for (size_t i = 0; i < before.size(); ++i) {
    if (has_grad(i)) {
      has_contributed_[i] = true;
    } else {
      model_params_[i].mutable_grad() = before[i];
    }
  }
}

bool MasterWeights::drop_zeroed() {
  bool any = false, all = true;
  for (size_t i = 0; i < model_params_.size(); ++i) {
    if (!has_contributed_[i]) continue;
    all &= was_zeroed(i);
    if (!was_zeroed(i)) continue;
    any = true;
    has_contributed_[i] = false;
    master_params_[i].mutable_grad().reset();
    if (is_pending()) pending_.grads[i].reset();
    if (delayed_) delayed_->before[i].reset();
  }
  if (!any || !all) return false;
  clear_pending();
  delayed_.reset();
  clear_found_inf_per_param();
  return true;
}

/// Leaves in the model's grads all that bears the scale, and returns what else was there before:
/// what was made, of parameters that are their own masters. Ends the open backward, and the delay.
std::vector<Tensor> MasterWeights::collect() {
  const bool was_open = open_.has_value();
  std::vector<Tensor> before(model_params_.size());
  if (was_open) before = *std::exchange(open_, std::nullopt);
  const auto delayed = std::exchange(delayed_, std::nullopt);
  for (size_t i = 0; delayed && i < before.size(); ++i) {
    Tensor& grad = model_params_[i].mutable_grad();
    if (delayed->bears[i]) {
      const Tensor earlier = std::exchange(before[i], delayed->before[i]);
      if (earlier.defined()) grad = grad.defined() ? earlier.add(grad) : earlier;
    } else if (!was_open) {
      std::swap(before[i], grad);
    }
  }
  return before;
}

void MasterWeights::drop_refused(const Tensor& found_inf) {
  const bool on_host = found_inf.is_cpu();
  if (on_host && found_inf.item<float>() == 0.0f) return;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < model_params_.size(); ++i) {
    Tensor& grad = model_params_[i].mutable_grad();
    if (is_separate(i) || !grad.defined()) continue;
    if (on_host) {
      grad.reset();
    } else {
      values_of(grad).masked_fill_(found_inf.to(grad.device(), at::kBool), 0);
    }
  }
}

/// Where each grad of a backward goes. Lists are as long as the parameters', with holes.
struct MasterWeights::Delivery {
  explicit Delivery(size_t count) : fresh(count), onto(count) {}

  struct Pass {
    explicit Pass(size_t count) : scaled(count), results(count) {}

    Borrowed scaled;
    Borrowed results;
    bool is_empty = true;
  };

  /// `scaled` is only looked at. It stays alive elsewhere.
  void check(size_t i, const Tensor& scaled) {
    fresh.scaled.set(i, scaled);
    fresh.is_empty = false;
  }
  void write(Pass& pass, size_t i, const Tensor& scaled, const Tensor& result) {
    kept.push_back(values_of(scaled));
    pass.scaled.set(i, kept.back());
    kept.push_back(values_of(result));
    pass.results.set(i, kept.back());
    pass.is_empty = false;
  }

  Pass fresh;                                   ///< results are written anew
  Pass onto;                                    ///< results are added to, in place
  std::vector<std::pair<size_t, Tensor>> sums;  ///< add this grad to the fresh one at the index
  std::vector<Tensor> kept;                     ///< what the lists borrow
};

/// To a grad written fresh, or added to in place, or, where one of the two is sparse, written fresh
/// and then added out of place.
void MasterWeights::route(size_t i, const Tensor& made, Delivery& delivery) {
  const bool separate = is_separate(i);
  Tensor scaled = model_params_[i].grad();
  Tensor& result = separate ? master_params_[i].mutable_grad() : model_params_[i].mutable_grad();
  const Tensor before = separate ? result : made;
  if (!scaled.defined()) {
    result = before;
    return;
  }
  if (scaled.is_sparse()) scaled = scaled.coalesce();
  if (before.defined() && !before.is_sparse() && !scaled.is_sparse()) {
    result = before;
    delivery.write(delivery.onto, i, scaled, result);
    return;
  }
  const bool in_place = !separate && !before.defined();
  result = in_place ? scaled : empty_master_grad(scaled, master_params_[i]);
  delivery.write(delivery.fresh, i, scaled, result);
  if (before.defined()) delivery.sums.emplace_back(i, before);
}

/// What is there of it until the step; the step unscales it on its way.
void MasterWeights::leave_pending(size_t i, Delivery& delivery) {
  const Tensor& grad = pending_.grads[i] = model_params_[i].grad();
  if (!grad.defined()) return;
  pending_.versions[i] = version_of(grad);
  delivery.check(i, grad);
}

Tensor MasterWeights::finish_backward(const BackwardEnd& end) {
  at::NoGradGuard no_grad;
  const size_t count = model_params_.size();
  const std::vector<Tensor> before = collect();
  const bool leaves_pending = can_leave_pending();
  if (leaves_pending) pending_ = Pending(count);
  Delivery delivery(count);
  for (size_t i = 0; i < count; ++i) {
    if (leaves_pending && is_separate(i)) {
      leave_pending(i, delivery);
    } else {
      route(i, before[i], delivery);
    }
  }
  note_contributions(before);
  const Tensor found_inf = deliver(delivery, end, leaves_pending);
  for (const auto& [i, before] : delivery.sums) {
    Tensor& grad =
        is_separate(i) ? master_params_[i].mutable_grad() : model_params_[i].mutable_grad();
    grad = grad.is_sparse() ? before.add(grad) : grad.add(before);
  }
  return found_inf;
}

Tensor MasterWeights::deliver(const Delivery& delivery, const BackwardEnd& end,
                              bool leaves_pending) {
  const auto count = static_cast<int64_t>(model_params_.size());
  const auto floats = end.loss_scale.options();
  BackwardEnding ending;
  ending.found_inf = at::empty({}, floats);
  ending.inv_scale = at::empty({}, floats);
  ending.found_before = end.found_before;
  ending.moved = end.moved;
  ending.adds_per_tensor = found_inf_per_param_.defined() && found_inf_per_param_.size(0) == count;
  ending.per_tensor =
      ending.adds_per_tensor ? found_inf_per_param_ : at::empty({count}, floats.dtype(at::kByte));
  const bool checks_last = delivery.onto.is_empty;
  if (leaves_pending && wants_norm_ && checks_last) ending.norm = at::empty({}, floats);
  const auto report = take_report(end.loss_scale.device());
  if (report != nullptr) ending.report = report->bytes();
  pass_over(delivery, end.loss_scale, ending);
  last_report_ = report;
  found_inf_per_param_ = ending.per_tensor;
  if (leaves_pending) pending_.factor = ending.inv_scale;
  if (leaves_pending) pending_.norm = ending.norm;
  return ending.found_inf;
}

/// In one pass, but where some grads are fresh and others add up.
void MasterWeights::pass_over(const Delivery& delivery, const Tensor& loss_scale,
                              const BackwardEnding& ending) {
  const auto count = static_cast<int64_t>(model_params_.size());
  Tensor raised = std::exchange(raised_, {});
  if (!raised.defined() || raised.size(0) != kRaisedHeader + count) {
    const OutsideCapture outside(loss_scale.device());
    raised = make_raised(count, loss_scale.device());
  }
  const auto pass = [&](const Delivery::Pass& pass, const BackwardEnding* last) {
    const bool accumulate = &pass == &delivery.onto;
    pass_over_grads(pass.scaled, pass.results, loss_scale, accumulate, raised, last);
  };
  if (!delivery.fresh.is_empty && !delivery.onto.is_empty) pass(delivery.fresh, nullptr);
  pass(delivery.onto.is_empty ? delivery.fresh : delivery.onto, &ending);
  raised_ = raised;
}

/// What was deferred may be of grads that were zeroed since: it moves the scale, in a launch of its
/// own, and skips no step.
Tensor finish_backward(const std::vector<MasterWeights*>& weights, LossScaler& scaler,
                       const ScaleSnapshot& scaled_by, bool moves_scale) {
  const Tensor deferred = scaler.deferred()->take();
  const bool moves = moves_scale && scaler.dynamic();
  const bool moves_in_pass = moves && !deferred.defined() && !weights.empty();
  Tensor found_inf;
  for (MasterWeights* each : weights) {
    const bool is_last = each == weights.back();
    const DynamicScale* moved =
        moves_in_pass && is_last ? &scaler.about_to_move(&scaled_by) : nullptr;
    found_inf = each->finish_backward({scaled_by.loss_scale(), found_inf, moved});
  }
  if (!found_inf.defined()) found_inf = at::zeros_like(scaler.found_inf());
  const Tensor any = deferred.defined() ? at::maximum(found_inf, deferred) : found_inf;
  const auto report = weights.empty() ? nullptr : weights.back()->last_report();
  scaler.end_backward(any, moves_in_pass, report);
  if (!moves_scale) scaler.deferred()->add(any);
  if (moves && !moves_in_pass) scaler.update();
  return found_inf;
}

std::vector<int64_t> MasterWeights::nonfinite_params() const {
  std::vector<int64_t> indices;
  if (!found_inf_per_param_.defined()) return indices;
  const Tensor flags = found_inf_per_param_.cpu();
  for (int64_t i = 0; i < flags.numel(); ++i) {
    if (flags.const_data_ptr<uint8_t>()[i] != 0) indices.push_back(i);
  }
  return indices;
}

void MasterWeights::drop_grads() {
  drop_grads(master_params_);
}

void MasterWeights::drop_grads(const std::vector<Tensor>& master_params) {
  clear_pending();
  delayed_.reset();
  clear_found_inf_per_param();
  for (const size_t i : indices_of(master_params)) {
    master_params_[i].mutable_grad().reset();
    model_params_[i].mutable_grad().reset();
    has_contributed_[i] = false;
  }
}

void MasterWeights::drop_master_grads() {
  clear_pending();
  delayed_.reset();
  for (const size_t i : separate_) {
    master_params_[i].mutable_grad().reset();
    has_contributed_[i] = false;
  }
  clear_found_inf_per_param();
}

void MasterWeights::zero_model_grads(bool set_to_none) {
  at::NoGradGuard no_grad;
  clear_pending();
  delayed_.reset();
  has_contributed_.assign(model_params_.size(), false);
  if (open_) open_->assign(model_params_.size(), Tensor());
  for (const size_t i : separate_) {
    Tensor& grad = model_params_[i].mutable_grad();
    if (!grad.defined()) continue;
    if (set_to_none) {
      grad.reset();
    } else {
      grad = grad.detach().zero_();
    }
  }
}

}  // namespace torchamp
