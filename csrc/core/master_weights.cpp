#include <ATen/core/grad_mode.h>
#include <torchamp/master_weights.h>
#include <torchamp/ops.h>

#include "core/versions.h"

namespace torchamp {
namespace {

using at::Tensor;

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
  make_room();
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

}  // namespace torchamp
