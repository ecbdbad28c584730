#include <ATen/core/grad_mode.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <torchamp/master_weights.h>
#include <torchamp/ops.h>

#include <algorithm>

#include "versions.h"

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

/// Whether `tensor` looks at float32 memory as if it were 16 bits wide: torch::load swaps the
/// memory of a parameter for that of the archive's tensor and leaves the dtype as it was.
bool is_misread_float(const Tensor& tensor) {
  if (tensor.element_size() != 2 || tensor.numel() == 0 || tensor.storage_offset() != 0)
    return false;
  const auto& storage = tensor.storage();
  return storage.use_count() == 1 && storage.nbytes() == sizeof(float) * tensor.numel();
}

}  // namespace

Tensor MasterWeights::make_master(const Tensor& model_param) {
  at::NoGradGuard no_grad;
  const Tensor data = model_param.variable_data();
  const bool reusable = data.scalar_type() == at::kFloat && data.is_non_overlapping_and_dense();
  Tensor master = reusable ? data : data.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  return master.set_requires_grad(model_param.requires_grad());
}

Tensor MasterWeights::track(const Tensor& model_param, const Tensor& master) {
  const auto known = index_.find(model_param.unsafeGetTensorImpl());
  if (known != index_.end()) return master_params_[known->second];
  const Tensor& stepped = master.defined() ? master : model_param;
  TORCH_CHECK(stepped.sizes() == model_param.sizes(),
              "MasterWeights::track: expected master to have sizes ", model_param.sizes(), ", got ",
              stepped.sizes());
  const size_t i = model_params_.size();
  index_.emplace(model_param.unsafeGetTensorImpl(), i);
  master_index_.emplace(stepped.unsafeGetTensorImpl(), i);
  model_params_.push_back(model_param);
  master_params_.push_back(stepped);
  model_dtypes_.push_back(model_param.scalar_type());
  seen_.push_back({});
  if (is_separate(i)) separate_.push_back(i);
  seen_[i] = look(i);
  return stepped;
}

Tensor MasterWeights::master_of(const Tensor& model_param) const {
  const auto known = index_.find(model_param.unsafeGetTensorImpl());
  return known == index_.end() ? Tensor() : master_params_[known->second];
}

bool MasterWeights::is_separate(size_t i) const {
  return !model_params_[i].is_same(master_params_[i]);
}

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

MasterWeights::Seen MasterWeights::look(size_t i) const {
  const Tensor& model = model_params_[i];
  return {version_of(model), version_of(master_params_[i]), model.const_data_ptr()};
}

void MasterWeights::check_unchanged(size_t i) const {
  const Tensor& model = model_params_[i];
  const at::Device device = master_params_[i].device();
  TORCH_CHECK(model.device() == device, "expected model parameter ", i,
              " of the optimizer, of sizes ", model.sizes(), ", to stay on ", device,
              " where initialize found it, got ", model.device(),
              "; move the model before initialize");
  const bool retyped = model.scalar_type() != model_dtypes_[i];
  TORCH_CHECK(!retyped && !is_misread_float(model), "amp: expected model parameter ", i,
              " of the optimizer, of sizes ", model.sizes(), ", to hold ", model_dtypes_[i],
              " as initialize left it, got ", retyped ? model.scalar_type() : at::kFloat,
              ". torch::load, model.half() and model.float() replace parameters behind the "
              "optimizer's back: change the type before initialize, and load checkpoints with "
              "amp::load");
}

bool MasterWeights::refresh() {
  at::NoGradGuard no_grad;
  std::vector<Tensor> stepped, behind;
  for (const size_t i : separate_) {
    const Seen now = look(i);
    if (now.model_version != seen_[i].model_version || now.model_data != seen_[i].model_data) {
      check_unchanged(i);
      adopt_model(i);
      seen_[i] = look(i);
    } else if (now.master_version != seen_[i].master_version) {
      stepped.push_back(master_params_[i]);
      behind.push_back(model_params_[i]);
    }
  }
  if (stepped.empty()) return false;
  ops::copy_cast(stepped, behind);
  mark_synced();
  return true;
}

void MasterWeights::force_refresh() {
  at::NoGradGuard no_grad;
  for (const size_t i : separate_) {
    check_unchanged(i);
    adopt_model(i);
  }
  mark_synced();
}

void MasterWeights::copy_to_model() {
  if (separate_.empty()) return;
  join();
  std::vector<Tensor> masters, models;
  for (const size_t i : separate_) {
    masters.push_back(master_params_[i]);
    models.push_back(model_params_[i]);
  }
  ops::copy_cast(masters, models);
  mark_synced();
}

void MasterWeights::recopy_to_model() {
  join();
  std::vector<Tensor> masters, aliases;
  for (const size_t i : separate_) {
    masters.push_back(master_params_[i]);
    aliases.push_back(model_params_[i].variable_data());
  }
  ops::copy_cast(masters, aliases);
}

void MasterWeights::mark_synced() {
  for (const size_t i : separate_) seen_[i] = look(i);
}

void MasterWeights::mark_synced(const Tensor& model_param) {
  const auto known = index_.find(model_param.unsafeGetTensorImpl());
  if (known != index_.end()) seen_[known->second] = look(known->second);
}

bool MasterWeights::is_rounded_master(const Tensor& model_param) const {
  const Tensor master = master_value(model_param);
  return master.defined() && at::equal(master.to(model_param.scalar_type()), model_param);
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
