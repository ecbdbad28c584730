#include "core/param.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <torchamp/ops.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "ops/autograd_meta.h"

namespace torchamp::core {
namespace {

using at::Tensor;

/// The Params of all tensors, for all threads.
class Registry {
 public:
  std::shared_ptr<Param> find(const Tensor& tensor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = params_.find(tensor.unsafeGetTensorImpl());
    return found == params_.end() ? nullptr : found->second.lock();
  }

  void add(const std::shared_ptr<Param>& param) {
    const std::lock_guard<std::mutex> lock(mutex_);
    params_[param->model.unsafeGetTensorImpl()] = param;
    params_[param->master.unsafeGetTensorImpl()] = param;
  }

  /// Removes a Param that is being destroyed.
  void remove(const Param& param) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Tensor& tensor : {param.model, param.master}) {
      const auto found = params_.find(tensor.unsafeGetTensorImpl());
      const bool is_its = found != params_.end() && found->second.expired();
      if (is_its) params_.erase(found);
    }
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, std::weak_ptr<Param>> params_;
};

/// Never destroyed: Params may outlive other statics.
Registry& registry() {
  static auto& instance = *new Registry;
  return instance;
}

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

/// int64 on the tensor's device: a hash of its bits.
Tensor hash_of(const Tensor& tensor) {
  const Tensor plain = tensor.detach();
  const Tensor dense = plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
  if (dense.is_cpu()) {
    const std::string_view bytes(static_cast<const char*>(address_of(dense)), dense.nbytes());
    return at::scalar_tensor(static_cast<int64_t>(std::hash<std::string_view>()(bytes)), at::kLong);
  }
  const Tensor bits = dense.as_strided({dense.numel()}, {1}).view(at::kShort);
  return bits.cumsum(0, at::kLong).sum().mul(31).add(bits.sum(at::kLong));
}

void copy_masters(const std::vector<Param*>& params) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> masters, models;
  for (const Param* param : params) {
    masters.push_back(param->master);
    models.push_back(param->model);
  }
  if (masters.empty()) return;
  ops::copy_cast(masters, models);
  for (Param* param : params) param->mark_synced();
}

}  // namespace

Param::Param(Tensor model, Tensor master)
    : model(std::move(model)),
      master(std::move(master)),
      grad(this->model, this->master),
      dtype_(this->model.scalar_type()),
      agreed_(look()) {}

Param::~Param() {
  registry().remove(*this);
}

std::shared_ptr<Param> param_of(const Tensor& tensor) {
  return registry().find(tensor);
}

std::shared_ptr<Param> make_param(const Tensor& model, const Tensor& master) {
  TORCH_CHECK(master.sizes() == model.sizes(), "amp: expected a master of sizes ", model.sizes(),
              ", got ", master.sizes());
  auto known = registry().find(model);
  if (known != nullptr && (known->has_master() || master.is_same(model))) return known;
  auto param = std::make_shared<Param>(model, master);
  registry().add(param);
  return param;
}

Tensor make_master(const Tensor& model_param) {
  at::NoGradGuard no_grad;
  const Tensor data = model_param.variable_data();
  const bool reusable = data.scalar_type() == at::kFloat && data.is_non_overlapping_and_dense();
  return reusable ? data : data.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

bool Param::is_gone() const {
  return model.use_count() == 2;  // by the grad, too
}

Param::Agreed Param::look() const {
  return {version_of(model), version_of(master), address_of(model)};
}

void Param::mark_synced() {
  agreed_ = look();
  if (is_watched_) {
    agreed_hash_.copy_(hash_of(model));
  } else {
    agreed_hash_.reset();
  }
}

void Param::watch_data_writes() {
  if (!has_master() || is_watched_) return;
  agreed_hash_ = hash_of(model);
  is_watched_ = true;
}

void Param::check_unchanged() const {
  TORCH_CHECK(model.device() == master.device(), "expected a model parameter of sizes ",
              model.sizes(), " to stay on ", master.device(), " where initialize found it, got ",
              model.device(), "; move the model before initialize");
  check_dtype();
}

void Param::check_dtype() const {
  const auto got = is_misread_float(model) ? at::kFloat : model.scalar_type();
  TORCH_CHECK(got == dtype_, "amp: expected a model parameter of sizes ", model.sizes(),
              " to hold ", dtype_, " as initialize left it, got ", got,
              ". model.half(), model.float() and, in C++, torch::load replace parameters without "
              "the optimizer's knowledge: change the type before initialize, and load checkpoints "
              "by amp's load, or into the model that initialize returned");
}

void Param::check_model() const {
  if (is_borrowed) return;
  if (!has_master()) {  // free to change its dtype, but not to be misread
    const bool was_moved = model.element_size() == 2 && address_of(model) != agreed_.model_data;
    if (was_moved && is_misread_float(model)) check_dtype();
  } else if (!is_as_agreed()) {
    check_unchanged();
  }
}

void Param::follow_model() {
  if (has_master() && is_as_agreed()) return;
  check_model();
  if (is_borrowed || !is_model_written()) return;
  at::NoGradGuard no_grad;
  master.copy_(value());
  mark_synced();
}

bool Param::is_as_agreed() const {
  return version_of(model) == agreed_.model_version && address_of(model) == agreed_.model_data;
}

bool Param::is_master_ahead() const {
  return has_master() && !is_borrowed && version_of(master) != agreed_.master_version &&
         is_as_agreed();
}

Tensor Param::value() const {
  at::NoGradGuard no_grad;
  const Tensor held = model.detach(), wide = master.detach();
  if (!has_master()) return held.to(at::kFloat);
  Tensor is_masters = wide.to(dtype_).eq(held);
  if (agreed_hash_.defined()) is_masters = is_masters.logical_or(is_hash_as_agreed());
  return at::where(is_masters, wide, held.to(at::kFloat));
}

Tensor Param::entry() {
  publish_entry();
  if (!has_master() || !is_rounded_master()) return value();
  if (!is_watched_) agreed_hash_ = hash_of(model);
  return master.detach();
}

void Param::publish_entry() {
  if (!agreed_hash_.defined() || is_watched_ || is_borrowed) return;
  at::NoGradGuard no_grad;
  model.variable_data().copy_(value());
  agreed_hash_.reset();
}

/// A bool scalar on the device.
Tensor Param::is_hash_as_agreed() const {
  return hash_of(model).eq(agreed_hash_);
}

void Param::set_master(const Tensor& value) {
  at::NoGradGuard no_grad;
  if (has_master()) Tensor(master).copy_(value);
}

void Param::set_master_where_held(const Tensor& value) {
  const Tensor own = this->value();
  at::NoGradGuard no_grad;
  set_master(at::where(value.to(model.scalar_type()).eq(model.detach()), value, own));
  mark_synced();
}

bool Param::is_rounded_master() const {
  at::NoGradGuard no_grad;
  return at::equal(master.detach().to(model.scalar_type()), model.detach());
}

void Param::adopt_data_writes() {
  if (!has_master()) return;
  const bool is_watched = agreed_hash_.defined();
  if (is_watched && model.is_cpu() && is_hash_as_agreed().item<bool>()) return;
  set_master(value());
  mark_synced();
}

void Param::overwrite_master() {
  if (!has_master()) return;
  check_unchanged();
  set_master(model.detach());
  mark_synced();
}

std::vector<Tensor> models_of(const ParamList& params) {
  std::vector<Tensor> models;
  for (const auto& param : params) models.push_back(param->model);
  return models;
}

std::vector<Tensor> masters_of(const ParamList& params) {
  std::vector<Tensor> masters;
  for (const auto& param : params) masters.push_back(param->master);
  return masters;
}

bool has_masters(const ParamList& params) {
  return std::any_of(params.begin(), params.end(),
                     [](const auto& param) { return param->has_master(); });
}

void refresh(const ParamList& params) {
  for (const auto& param : params) param->follow_model();
  publish_masters(params);
}

void publish_masters(const ParamList& params) {
  std::vector<Param*> ahead;
  for (const auto& param : params) {
    if (param->is_master_ahead()) {
      ahead.push_back(param.get());
    } else {
      param->publish_entry();
    }
  }
  copy_masters(ahead);
}

void check_and_publish(const ParamList& params) {
  for (const auto& param : params) param->check_model();
  publish_masters(params);
}

void copy_to_model(const ParamList& params) {
  std::vector<Param*> separate;
  for (const auto& param : params) {
    if (param->has_master()) separate.push_back(param.get());
  }
  copy_masters(separate);
}

bool have_masters(at::TensorList tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const Tensor& tensor) { return !stepped_for(tensor).is_same(tensor); });
}

Tensor stepped_for(const Tensor& param) {
  const auto known = param_of(param);
  return known == nullptr ? param : known->master;
}

}  // namespace torchamp::core
