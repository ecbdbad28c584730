// The part of MasterWeights that grads pass through.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <torchamp/master_weights.h>
#include <torchamp/ops.h>

#include <algorithm>

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

std::vector<Tensor> values_of(const std::vector<Tensor>& grads) {
  std::vector<Tensor> values;
  values.reserve(grads.size());
  for (const Tensor& grad : grads) values.push_back(grad.defined() ? values_of(grad) : Tensor());
  return values;
}

}  // namespace

void MasterWeights::prepare_backward() {
  materialize();
  set_aside_.assign(model_params_.size(), Tensor());
  for (size_t i = 0; i < model_params_.size(); ++i) {
    std::swap(set_aside_[i], model_params_[i].mutable_grad());
  }
}

void MasterWeights::cancel_backward() {
  for (size_t i = 0; i < set_aside_.size(); ++i) {
    model_params_[i].mutable_grad() = set_aside_[i];
  }
  set_aside_.clear();
}

/// Where each grad of a backward goes: written fresh, added in place to a dense grad, or, where one
/// of the two is sparse, written fresh and then added out of place. Lists are as long as the
/// parameters', with holes.
struct MasterWeights::Delivery {
  explicit Delivery(size_t count) : scaled(count), fresh(count), onto(count) {}

  std::vector<Tensor> scaled;
  std::vector<Tensor> fresh;
  std::vector<Tensor> onto;
  std::vector<std::pair<size_t, Tensor>> sums;  ///< add this grad to the fresh one at the index

  bool is_empty() const {
    const auto is_defined = [](const Tensor& grad) { return grad.defined(); };
    return std::none_of(scaled.begin(), scaled.end(), is_defined);
  }
};

void MasterWeights::route(size_t i, Delivery& delivery) {
  const bool separate = is_separate(i);
  Tensor scaled = model_params_[i].grad();
  Tensor& result = separate ? master_params_[i].mutable_grad() : model_params_[i].mutable_grad();
  const Tensor before = separate ? result : set_aside_[i];
  if (!scaled.defined()) {
    result = before;
    return;
  }
  if (scaled.is_sparse()) scaled = scaled.coalesce();
  delivery.scaled[i] = scaled;
  if (before.defined() && !before.is_sparse() && !scaled.is_sparse()) {
    result = delivery.onto[i] = before;
    return;
  }
  const bool in_place = !separate && !before.defined();
  result = delivery.fresh[i] = in_place ? scaled : empty_master_grad(scaled, master_params_[i]);
  if (before.defined()) delivery.sums.emplace_back(i, before);
}

void MasterWeights::finish_backward(const Tensor& inv_scale, const Tensor& found_inf) {
  at::NoGradGuard no_grad;
  const size_t count = model_params_.size();
  if (!found_inf_per_param_.defined() || found_inf_per_param_.size(0) != int64_t(count)) {
    found_inf_per_param_ = at::zeros({int64_t(count)}, found_inf.options().dtype(at::kByte));
  }
  const bool leaves_pending = can_leave_pending();
  set_aside_.resize(count);
  Delivery delivery(count);
  for (size_t i = 0; i < count; ++i) {
    if (!leaves_pending || !is_separate(i)) route(i, delivery);
  }
  set_aside_.clear();
  grads_are_scaled_ = false;
  if (leaves_pending) leave_pending(inv_scale, found_inf);
  if (delivery.is_empty()) return;
  const auto scaled = values_of(delivery.scaled);
  ops::unscale(scaled, values_of(delivery.fresh), inv_scale, found_inf, false,
               found_inf_per_param_);
  ops::unscale(scaled, delivery.onto, inv_scale, found_inf, true, found_inf_per_param_);
  for (const auto& [i, before] : delivery.sums) {
    Tensor& grad =
        is_separate(i) ? master_params_[i].mutable_grad() : model_params_[i].mutable_grad();
    grad = grad.is_sparse() ? before.add(grad) : grad.add(before);
  }
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
  clear_pending();
  for (const Tensor& master : master_params_) master.mutable_grad().reset();
  for (const Tensor& model : model_params_) model.mutable_grad().reset();
  clear_found_inf_per_param();
}

void MasterWeights::drop_master_grads() {
  clear_pending();
  for (const size_t i : separate_) master_params_[i].mutable_grad().reset();
  clear_found_inf_per_param();
}

void MasterWeights::zero_model_grads(bool set_to_none) {
  at::NoGradGuard no_grad;
  clear_pending();
  for (Tensor& grad : set_aside_) grad.reset();
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
