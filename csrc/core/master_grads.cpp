#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/detail/master_grads.h>
#include <torchamp/ops.h>

#include <algorithm>
#include <utility>

#include "core/autograd_meta.h"
#include "core/backward_report.h"
#include "core/outside_capture.h"
#include "core/unscale_pass.h"

namespace torchamp {
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

/// Whether any is.
bool are_defined(const std::vector<Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return t.defined(); });
}

}  // namespace

void MasterGrads::Deferred::begin(size_t count) {
  grads.assign(count, Tensor());
  versions.assign(count, 0);
}

/// One that the program has zeroed; the norm is that of those that are left.
void MasterGrads::Deferred::drop(size_t i) {
  grads[i].reset();
  norm.reset();
}

/// Keeps the lists' memory for the next backward.
void MasterGrads::Deferred::clear() {
  factor.reset();
  norm.reset();
  grads.clear();
  versions.clear();
}

bool MasterGrads::has_grad(size_t i) const {
  return grad_of(weights_.model_params()[i]).defined();
}

void MasterGrads::resize() {
  const size_t count = weights_.size();
  has_contributed_.resize(count);
  versions_.resize(count);
  has_zeros_.resize(count);
  if (open_) open_->resize(count);
  if (delayed_) {
    delayed_->is_scaled.resize(count);
    delayed_->before.resize(count);
  }
  if (is_deferred()) {
    deferred_.grads.resize(count);
    deferred_.versions.resize(count);
  }
  if (found_inf_per_param_.defined()) {
    const auto added = static_cast<int64_t>(count) - found_inf_per_param_.numel();
    found_inf_per_param_ = at::constant_pad_nd(found_inf_per_param_, {0, added});
  }
}

/// Delayed grads stay where they are: the backward adds to them, and DistributedDataParallel
/// reduces the sum.
void MasterGrads::prepare_backward() {
  materialize();
  open_.emplace(weights_.size());
  for (size_t i = 0; i < weights_.size(); ++i) {
    Tensor& grad = weights_.model_params()[i].mutable_grad();
    if (!grad.defined()) continue;
    const bool stays = delayed_ && delayed_->is_scaled[i];
    (*open_)[i] = stays || is_part_of_a_bucket(grad) ? grad.detach().clone() : grad;
    if (!stays) grad.reset();
  }
}

void MasterGrads::take_backward() {
  materialize();
  open_.emplace(weights_.size());
}

bool MasterGrads::has_finished_grads() const {
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (has_contributed_[i] && has_grad(i) && !(delayed_ && delayed_->is_scaled[i])) return true;
  }
  return false;
}

/// Whether a backward has added to one that was there, or has made one.
bool MasterGrads::has_new_grads() const {
  for (size_t i = 0; i < weights_.size(); ++i) {
    const Tensor& grad = grad_of(weights_.model_params()[i]);
    const bool was_there = delayed_ && delayed_->is_scaled[i];
    if (grad.defined() && !(was_there && version_of(grad) == versions_[i])) return true;
  }
  return false;
}

void MasterGrads::cancel_backward() {
  if (!open_) return;
  const std::vector<Tensor> found = *std::exchange(open_, std::nullopt);
  for (size_t i = 0; i < found.size(); ++i) {
    weights_.model_params()[i].mutable_grad() = found[i];
    if (delayed_ && delayed_->is_scaled[i]) versions_[i] = version_of(found[i]);
  }
}

void MasterGrads::delay_backward(Scaled scaled) {
  at::NoGradGuard no_grad;
  const std::vector<Tensor> before = collect();
  Delayed delayed{std::move(scaled), std::vector<bool>(before.size()), before};
  for (size_t i = 0; i < before.size(); ++i) {
    delayed.is_scaled[i] = has_grad(i);
    if (!delayed.is_scaled[i] || weights_.is_separate(i)) delayed.before[i].reset();
  }
  note_contributions(before);
  delayed_ = std::move(delayed);
}

/// Zeros that zero_grad left count as the contribution of a backward that does not reach them.
void MasterGrads::keep_zeros(const std::vector<Tensor>& before) {
  for (const size_t i : weights_.separate()) {
    if (has_zeros_[i] && !has_grad(i)) weights_.model_params()[i].mutable_grad() = before[i];
  }
  has_zeros_.assign(weights_.size(), false);
}

bool MasterGrads::are_delayed(const TensorSet& stepped) const {
  for (size_t i = 0; delayed_ && i < weights_.size(); ++i) {
    const bool is_among = stepped.count(weights_.master_params()[i].unsafeGetTensorImpl()) > 0;
    if (delayed_->is_scaled[i] && is_among) return true;
  }
  return false;
}

/// A grad that is kept in the model, though nothing was added to it, shows whether it was zeroed.
void MasterGrads::note_contributions(const std::vector<Tensor>& before) {
  for (size_t i = 0; i < before.size(); ++i) {
    if (has_grad(i)) {
      has_contributed_[i] = true;
      versions_[i] = version_of(grad_of(weights_.model_params()[i]));
    } else {
      weights_.model_params()[i].mutable_grad() = before[i];
    }
  }
}

bool MasterGrads::drop_zeroed() {
  bool any = false, all = true;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!has_contributed_[i]) continue;
    if (has_grad(i)) {
      all = false;
      continue;
    }
    any = true;
    has_contributed_[i] = false;
    weights_.master_params()[i].mutable_grad().reset();
    if (is_deferred()) deferred_.drop(i);
    if (delayed_) delayed_->before[i].reset();
  }
  if (!any || !all) return false;
  forget_scaled();
  clear_found_inf_per_param();
  return true;
}

/// Keeps the scaled grads in the model, and returns the other previous ones: the materialized grads
/// of parameters that are their own masters. Ends the open backward, and the delay.
std::vector<Tensor> MasterGrads::collect() {
  const bool was_open = open_.has_value();
  auto before =
      was_open ? *std::exchange(open_, std::nullopt) : std::vector<Tensor>(weights_.size());
  const auto delayed = std::exchange(delayed_, std::nullopt);
  for (size_t i = 0; delayed && i < before.size(); ++i) {
    if (delayed->is_scaled[i]) {
      before[i] = delayed->before[i];
    } else if (!was_open) {
      std::swap(before[i], weights_.model_params()[i].mutable_grad());
    }
  }
  return before;
}

void MasterGrads::discard_if(const Tensor& found_inf, size_t i, bool keeps_zeros) {
  const bool is_delayed = delayed_ && delayed_->is_scaled[i];
  Tensor& grad = is_delayed ? delayed_->before[i] : weights_.master_params()[i].mutable_grad();
  if (keeps_zeros || !found_inf.is_cpu()) {
    if (!grad.defined()) return;
    at::NoGradGuard no_grad;
    values_of(grad).masked_fill_(found_inf.to(grad.device(), at::kBool), 0);
  } else if (found_inf.item<float>() != 0.0f) {
    grad.reset();
    if (!weights_.is_separate(i) && !is_delayed) has_contributed_[i] = false;
  }
}

/// To a grad written fresh, or added to in place. Where one of the two is sparse, the sum of both
/// is left to ATen: returns the addend of the fresh grad; else undefined.
Tensor MasterGrads::route(size_t i, const Tensor& materialized, UnscalePass& pass) {
  const bool separate = weights_.is_separate(i);
  const Tensor& master = weights_.master_params()[i];
  Tensor scaled = grad_of(weights_.model_params()[i]);
  Tensor& result = master.mutable_grad();
  const Tensor before = separate ? result : materialized;
  if (!scaled.defined()) {
    result = before;
    return {};
  }
  if (scaled.is_sparse()) scaled = scaled.coalesce();
  if (before.defined() && !before.is_sparse() && !scaled.is_sparse()) {
    result = before;
    pass.accumulate(i, scaled, result);
    return {};
  }
  const bool in_place = !separate && !before.defined();
  result = in_place ? scaled : empty_master_grad(scaled, master);
  pass.write(i, scaled, result);
  return before;
}

/// Not while grads accumulate over several backwards: each may have its own scale.
bool MasterGrads::can_defer() const {
  const auto must_be_made = [&](size_t i) {
    const Tensor& grad = grad_of(weights_.model_params()[i]);
    return grad_of(weights_.master_params()[i]).defined() || (grad.defined() && grad.is_sparse());
  };
  const auto& separate = weights_.separate();
  return lazy_ && !separate.empty() && std::none_of(separate.begin(), separate.end(), must_be_made);
}

void MasterGrads::defer(size_t i, UnscalePass& pass) {
  const Tensor& grad = deferred_.grads[i] = grad_of(weights_.model_params()[i]);
  if (!grad.defined()) return;
  deferred_.versions[i] = version_of(grad);
  pass.check(i, grad);
}

Tensor MasterGrads::finish_backward(const Tensor& loss_scale, const Tensor& found_before,
                                    const DynamicScale* moved, const Tensor& loss) {
  at::NoGradGuard no_grad;
  const size_t count = weights_.size();
  const std::vector<Tensor> before = collect();
  keep_zeros(before);
  const bool defers = can_defer();
  if (defers) deferred_.begin(count);
  UnscalePass pass(count);
  std::vector<std::pair<size_t, Tensor>> addends;
  for (size_t i = 0; i < count; ++i) {
    if (defers && weights_.is_separate(i)) {
      defer(i, pass);
    } else if (Tensor addend = route(i, before[i], pass); addend.defined()) {
      addends.emplace_back(i, std::move(addend));
    }
  }
  note_contributions(before);
  BackwardEnd end;
  end.found_before = found_before;
  end.moved = moved;
  end.loss = loss;
  const Tensor found_inf = run(pass, loss_scale, std::move(end), defers);
  for (const auto& [i, addend] : addends) {
    Tensor& grad = weights_.master_params()[i].mutable_grad();
    grad = grad.is_sparse() ? addend.add(grad) : grad.add(addend);
  }
  return found_inf;
}

Tensor MasterGrads::run(const UnscalePass& pass, const Tensor& loss_scale, BackwardEnd end,
                        bool defers) {
  const auto count = static_cast<int64_t>(weights_.size());
  const auto floats = loss_scale.options();
  end.found_inf = at::empty({}, floats);
  end.inv_scale = at::empty({}, floats);
  end.adds_per_tensor = found_inf_per_param_.defined();
  end.per_tensor =
      end.adds_per_tensor ? found_inf_per_param_ : at::empty({count}, floats.dtype(at::kByte));
  if (defers && wants_norm_ && pass.checks_last()) end.norm = at::empty({}, floats);
  const auto report = acquire_report(loss_scale.device());
  if (report != nullptr) end.report = report->bytes();
  const Tensor overflow_flags = take_overflow_flags(loss_scale.device());
  pass.run(loss_scale, overflow_flags, end);
  overflow_flags_ = overflow_flags;
  last_report_ = report;
  found_inf_per_param_ = end.per_tensor;
  if (defers) deferred_.factor = end.inv_scale;
  if (defers) deferred_.norm = end.norm;
  return end.found_inf;
}

Tensor MasterGrads::take_overflow_flags(at::Device device) {
  const auto count = static_cast<int64_t>(weights_.size());
  const Tensor kept = std::exchange(overflow_flags_, {});
  if (kept.defined() && kept.size(0) == kFlagsHeader + count) return kept;
  const OutsideCapture outside(device);
  return make_overflow_flags(count, device);
}

void MasterGrads::set_lazy(bool lazy) {
  if (!lazy) materialize();
  lazy_ = lazy;
}

/// Deferred master grads exist only as the model's grads.
void MasterGrads::check_deferred_unchanged() const {
  for (const size_t i : weights_.separate()) {
    const Tensor& grad = deferred_.grads[i];
    TORCH_CHECK(!grad.defined() || version_of(grad) == deferred_.versions[i],
                "expected the grad of model parameter ", i, " of the optimizer, of sizes ",
                grad.sizes(),
                ", to be unmodified since scale_loss, got a modified one; "
                "clip with amp.clip_grad_norm_, or modify the grads of amp.master_params");
  }
}

void MasterGrads::materialize() {
  if (!is_deferred()) return;
  at::NoGradGuard no_grad;
  check_deferred_unchanged();
  std::vector<Tensor> made(weights_.size());
  for (const size_t i : weights_.separate()) {
    if (!deferred_.grads[i].defined()) continue;
    const auto dtype = weights_.master_params()[i].scalar_type();
    made[i] = at::empty_like(deferred_.grads[i], deferred_.grads[i].options().dtype(dtype));
  }
  const Tensor checked_before = at::zeros_like(deferred_.factor);
  ops::unscale(deferred_.grads, made, deferred_.factor, checked_before);
  for (const size_t i : weights_.separate()) {
    weights_.master_params()[i].mutable_grad() = made[i];
  }
  deferred_.clear();
}

Tensor MasterGrads::norm_of_deferred() {
  wants_norm_ = true;
  if (!is_deferred()) return {};
  check_deferred_unchanged();
  return deferred_.norm.defined() ? deferred_.norm : std::get<0>(ops::l2norm(deferred_.grads));
}

void MasterGrads::step(FusedStepper& stepper, const Tensor& skip) {
  at::NoGradGuard no_grad;
  if (stepper.joins_norms()) materialize();
  if (is_deferred()) check_deferred_unchanged();
  const std::vector<size_t> indices = weights_.indices_of(stepper.params());
  Borrowed grads(indices.size()), models(indices.size());
  std::vector<int64_t> unscaled, scaled;
  for (size_t k = 0; k < indices.size(); ++k) {
    const size_t i = indices[k];
    const bool is_scaled = is_deferred() && deferred_.grads[i].defined();
    const Tensor& grad = is_scaled ? deferred_.grads[i] : grad_of(weights_.master_params()[i]);
    if (!grad.defined()) continue;
    grads.set(k, grad);
    if (weights_.is_separate(i)) models.set(k, weights_.model_params()[i]);
    (is_scaled ? scaled : unscaled).push_back(static_cast<int64_t>(k));
  }
  if (unscaled.empty() && scaled.empty()) return;
  FusedStepper::Step step;
  if (skip.defined()) step.skip = skip;
  if (scaled.empty()) unscaled.clear();
  if (!scaled.empty()) step.grad_factor = deferred_.factor;
  stepper.step({grads, models, unscaled}, step);
  weights_.mark_synced();
}

std::vector<int64_t> MasterGrads::nonfinite_params() const {
  std::vector<int64_t> indices;
  if (!found_inf_per_param_.defined()) return indices;
  const Tensor flags = found_inf_per_param_.cpu();
  for (int64_t i = 0; i < flags.numel(); ++i) {
    if (flags.const_data_ptr<uint8_t>()[i] != 0) indices.push_back(i);
  }
  return indices;
}

bool MasterGrads::lacks(const TensorSet& stepped) const {
  const auto& masters = weights_.master_params();
  const auto is_stepped = [&](size_t i) {
    return stepped.count(masters[i].unsafeGetTensorImpl()) > 0;
  };
  bool model_has = false;
  for (const size_t i : weights_.separate()) {
    if (!is_stepped(i)) continue;
    if (grad_of(masters[i]).defined() || (is_deferred() && deferred_.grads[i].defined()))
      return false;
    model_has |= has_grad(i);
  }
  if (model_has) return true;
  for (size_t i = 0; i < masters.size(); ++i) {
    if (!weights_.is_separate(i) && has_grad(i) && is_stepped(i)) return false;
  }
  return true;
}

bool MasterGrads::were_modified() const {
  const auto& separate = weights_.separate();
  return !is_deferred() && std::any_of(separate.begin(), separate.end(), [&](size_t i) {
    return has_contributed_[i] && has_grad(i) &&
           version_of(grad_of(weights_.model_params()[i])) != versions_[i];
  });
}

void MasterGrads::forget_scaled() {
  deferred_.clear();
  delayed_.reset();
}

void MasterGrads::refuse(const std::vector<Tensor>& master_params) {
  const std::vector<size_t> refused = weights_.indices_of(master_params);
  clear_found_inf_of(refused);
  for (const size_t i : refused) {
    forget_scaled(i);
    Tensor& grad = weights_.master_params()[i].mutable_grad();
    if (grad.defined()) refused_.push_back(i);
    grad.reset();
    if (!weights_.is_separate(i)) has_contributed_[i] = false;
  }
  end_scaled();
}

void MasterGrads::clear_found_inf_of(const std::vector<size_t>& indices) {
  if (!found_inf_per_param_.defined()) return;
  if (indices.size() == weights_.size()) return clear_found_inf_per_param();
  const std::vector<int64_t> cleared(indices.begin(), indices.end());
  const auto options = at::TensorOptions(at::kLong).device(found_inf_per_param_.device());
  found_inf_per_param_.index_fill_(0, at::tensor(cleared, options), 0);
}

bool MasterGrads::has_refused_besides(const TensorSet& stepped) const {
  return std::any_of(refused_.begin(), refused_.end(), [&](size_t i) {
    const Tensor& master = weights_.master_params()[i];
    return !weights_.is_separate(i) && stepped.count(master.unsafeGetTensorImpl()) == 0;
  });
}

void MasterGrads::zero_refused(const TensorSet& stepped, bool zeros) {
  for (const size_t i : std::exchange(refused_, {})) {
    const Tensor& master = weights_.master_params()[i];
    Tensor& grad = master.mutable_grad();
    if (stepped.count(master.unsafeGetTensorImpl()) == 0) {
      refused_.push_back(i);
    } else if (zeros && !grad.defined()) {
      grad = at::zeros_like(master.detach());
    }
  }
}

void MasterGrads::drop_master_grads() {
  forget_scaled();
  refused_.clear();
  clear_found_inf_per_param();
  for (const size_t i : weights_.separate()) {
    weights_.master_params()[i].mutable_grad().reset();
    has_contributed_[i] = false;
  }
}

void MasterGrads::zero_model_grads(bool set_to_none, const TensorSet& stepped) {
  at::NoGradGuard no_grad;
  const bool are_all = stepped.size() == weights_.size();
  for (size_t i = 0; i < weights_.size(); ++i) {
    const bool is_stepped =
        are_all || stepped.count(weights_.master_params()[i].unsafeGetTensorImpl()) > 0;
    if (!is_stepped) continue;
    forget(i);
    Tensor& grad = weights_.model_params()[i].mutable_grad();
    if (!weights_.is_separate(i) || !grad.defined()) continue;
    if (set_to_none) {
      grad.reset();
    } else {
      grad = grad.detach().zero_();
      has_zeros_[i] = true;
    }
  }
  end_scaled();
}

bool MasterGrads::drop_known(const TensorSet& model_params) {
  bool any = false, all = true;
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (model_params.count(weights_.model_params()[i].unsafeGetTensorImpl()) == 0) {
      all &= !has_contributed_[i];
      continue;
    }
    any |= has_contributed_[i];
    forget(i);
    if (weights_.is_separate(i)) weights_.master_params()[i].mutable_grad().reset();
  }
  end_scaled();
  return any && all;
}

/// Other than its grad itself, everything that was known of it.
void MasterGrads::forget(size_t i) {
  has_contributed_[i] = has_zeros_[i] = false;
  if (open_) (*open_)[i].reset();
  forget_scaled(i);
}

/// end_scaled() follows.
void MasterGrads::forget_scaled(size_t i) {
  if (is_deferred()) deferred_.drop(i);
  if (!delayed_) return;
  delayed_->is_scaled[i] = false;
  delayed_->before[i].reset();
}

/// If forget_scaled(i) has left none.
void MasterGrads::end_scaled() {
  if (is_deferred() && !are_defined(deferred_.grads)) deferred_.clear();
  if (!delayed_) return;
  const auto& is_scaled = delayed_->is_scaled;
  if (std::count(is_scaled.begin(), is_scaled.end(), true) == 0) delayed_.reset();
}

}  // namespace torchamp
