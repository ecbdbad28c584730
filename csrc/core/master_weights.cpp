#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/where.h>
#include <torchamp/detail/master_weights.h>
#include <torchamp/ops.h>

#include "core/autograd_meta.h"

namespace torchamp {
namespace {

using at::Tensor;

/// `tensor.const_data_ptr()` without its checks.
const void* address_of(const Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const auto* const memory = static_cast<const char*>(impl.unsafe_storage().data());
  return memory + impl.storage_offset() * impl.itemsize();
}

/// Whether `tensor` reads float32 memory as if it were 16 bits wide: torch::load swaps the
/// memory of a parameter for that of the archive's tensor and keeps the dtype.
bool is_misread_float(const Tensor& tensor) {
  if (tensor.element_size() != 2 || tensor.numel() == 0 || tensor.storage_offset() != 0)
    return false;
  const auto& storage = tensor.storage();
  return storage.use_count() == 1 && storage.nbytes() == sizeof(float) * tensor.numel();
}

/// Whether 16-bit tensors of equal sizes are equal; compares four elements at a time, torch one
/// by one.
bool equal_halves(const Tensor& one, const Tensor& other) {
  const auto is_aligned = [](const Tensor& t) {
    return t.is_contiguous() && t.storage_offset() % 4 == 0 && t.numel() % 4 == 0;
  };
  if (one.itemsize() != 2 || !is_aligned(one) || !is_aligned(other)) return at::equal(one, other);
  return at::equal(one.view(-1).view(at::kLong), other.view(-1).view(at::kLong));
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

/// Constant time per parameter in the order of master_params().
std::vector<size_t> MasterWeights::indices_of(const std::vector<Tensor>& master_params) const {
  std::vector<size_t> indices;
  indices.reserve(master_params.size());
  size_t next = 0;
  for (const Tensor& master : master_params) {
    const bool is_next = next < master_params_.size() && master_params_[next].is_same(master);
    if (!is_next) next = master_index_.at(master.unsafeGetTensorImpl());
    indices.push_back(next++);
  }
  return indices;
}

Tensor MasterWeights::master_value(const Tensor& model_param) const {
  at::NoGradGuard no_grad;
  const auto known = index_.find(model_param.unsafeGetTensorImpl());
  if (known == index_.end()) return {};
  return master_params_[known->second].detach().clone();
}

void MasterWeights::set_master_value(const Tensor& model_param, const Tensor& value) {
  at::NoGradGuard no_grad;
  master_params_[index_.at(model_param.unsafeGetTensorImpl())].copy_(value);
}

/// Copies the model's value to the master.
void MasterWeights::adopt_model(size_t i) {
  master_params_[i].copy_(model_params_[i]);
}

/// The same, but for elements that the model holds, rounded.
void MasterWeights::adopt_writes(size_t i) {
  master_params_[i].copy_(held_value(model_params_[i]));
}

MasterWeights::Seen MasterWeights::look(size_t i) const {
  const Tensor& model = model_params_[i];
  return {version_of(model), version_of(master_params_[i]), address_of(model)};
}

void MasterWeights::check_unchanged(size_t i) const {
  const Tensor& model = model_params_[i];
  const at::Device device = master_params_[i].device();
  TORCH_CHECK(model.device() == device, "expected model parameter ", i,
              " of the optimizer, of sizes ", model.sizes(), ", to stay on ", device,
              " where initialize found it, got ", model.device(),
              "; move the model before initialize");
  check_dtype(i);
}

void MasterWeights::check_dtype(size_t i) const {
  const Tensor& model = model_params_[i];
  const auto got = is_misread_float(model) ? at::kFloat : model.scalar_type();
  TORCH_CHECK(got == model_dtypes_[i], "amp: expected model parameter ", i,
              " of the optimizer, of sizes ", model.sizes(), ", to hold ", model_dtypes_[i],
              " as initialize left it, got ", got,
              ". torch::load, model.half() and model.float() replace parameters without the "
              "optimizer's knowledge: change the type before initialize, and load checkpoints with "
              "amp::load, or with torch::load into the model that initialize returned");
}

/// Of the parameters without a separate master, which are free to change their dtype.
void MasterWeights::check_not_misread() const {
  if (separate_.size() == size()) return;
  for (size_t i = 0; i < size(); ++i) {
    const Tensor& model = model_params_[i];
    if (is_separate(i) || model.element_size() != 2) continue;
    if (address_of(model) != seen_[i].model_data && is_misread_float(model)) check_dtype(i);
  }
}

bool MasterWeights::refresh() {
  at::NoGradGuard no_grad;
  check_not_misread();
  std::vector<Tensor> stepped, behind;
  for (const size_t i : separate_) {
    const Seen now = look(i);
    if (now.model_version != seen_[i].model_version || now.model_data != seen_[i].model_data) {
      check_unchanged(i);
      adopt_writes(i);
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
  std::vector<Tensor> masters, models;
  for (const size_t i : separate_) {
    masters.push_back(master_params_[i]);
    models.push_back(model_params_[i]);
  }
  ops::copy_cast(masters, models);
  mark_synced();
}

void MasterWeights::recopy_to_model() {
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

Tensor MasterWeights::held_value(const Tensor& model_param) const {
  at::NoGradGuard no_grad;
  const Tensor master = master_value(model_param), held = model_param.detach();
  if (!master.defined()) return {};
  return at::where(master.to(held.scalar_type()).eq(held), master, held.to(at::kFloat));
}

void MasterWeights::adopt_where_held(const Tensor& model_param, const Tensor& value) {
  const Tensor own = held_value(model_param);
  at::NoGradGuard no_grad;
  const size_t i = index_.at(model_param.unsafeGetTensorImpl());
  const Tensor model = model_params_[i].detach();
  const Tensor master = at::where(value.to(model.scalar_type()).eq(model), value, own);
  master_params_[i].copy_(master);
  seen_[i] = look(i);
}

void MasterWeights::release() {
  for (const size_t i : separate_) {
    model_params_[i].mutable_grad().reset();
    model_params_[i].set_data(master_params_[i].variable_data());
  }
}

bool MasterWeights::holds_master(size_t i) const {
  const Tensor& model = model_params_[i];
  return equal_halves(master_params_[i].detach().to(model.scalar_type()), model.detach());
}

void MasterWeights::adopt_data_writes() {
  at::NoGradGuard no_grad;
  for (const size_t i : separate_) {
    const Tensor& model = model_params_[i];
    if (model.is_cpu() && holds_master(i)) continue;
    set_master_value(model, held_value(model));
    mark_synced(model);
  }
}

}  // namespace torchamp
