#include <torchamp/amp_state.h>
#include <torchamp/cast.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace torchamp {
namespace {

using torch::nn::Module;

bool is_low_precision(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16;
}

void check_model(const Module& model) {
  for (const auto& param : model.named_parameters()) {
    TORCH_CHECK(!is_low_precision(param->scalar_type()),
                "initialize: expected a float32 model, got parameter \"", param.key(), "\" in ",
                param->scalar_type(),
                ". initialize casts the model itself: remove the call of to(torch::kHalf)");
  }
}

at::Device device_of(const std::vector<std::shared_ptr<Module>>& models) {
  for (const auto& model : models) {
    const auto params = model->parameters();
    if (!params.empty()) return params.front().device();
  }
  return at::kCPU;
}

std::vector<at::DeviceType> device_types_of(const std::vector<std::shared_ptr<Module>>& models) {
  std::vector<at::DeviceType> types;
  for (const auto& model : models) {
    for (const auto& param : model->parameters()) {
      const auto type = param.device().type();
      if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
    }
  }
  return types;
}

LossScalerOptions scaler_options(const Options& options, const Properties& properties) {
  LossScalerOptions scaler;
  scaler.loss_scale = properties.loss_scale;
  scaler.rule.min_scale = options.min_loss_scale().value_or(0.0);
  scaler.rule.max_scale = options.max_loss_scale();
  return scaler;
}

/// An optimizer's state is found by its parameter, so it moves when the parameter is replaced.
void move_state(torch::optim::Optimizer& optimizer, const at::Tensor& from, const at::Tensor& to) {
  auto& state = optimizer.state();
  const auto found = state.find(from.unsafeGetTensorImpl());
  if (found == state.end()) return;
  auto moved = std::move(found->second);
  state.erase(found);
  state[to.unsafeGetTensorImpl()] = std::move(moved);
}

}  // namespace

Amp::Amp(std::vector<std::shared_ptr<Module>> models,
         const std::vector<std::reference_wrapper<torch::optim::Optimizer>>& optimizers,
         const Options& options)
    : options_(options), properties_(options.resolve()), models_(std::move(models)) {
  for (torch::optim::Optimizer& optimizer : optimizers) optimizers_.emplace_back(optimizer);
  if (!enabled()) return;
  for (const auto& model : models_) check_model(*model);
  if (properties_.autocast_type) {
    open_autocast_.emplace(device_types_of(models_), *properties_.autocast_type);
  }
  for (int64_t i = 0; i < options.num_losses(); ++i) {
    loss_scalers_.emplace_back(scaler_options(options_, properties_), device_of(models_));
  }
  make_masters();
  cast_models();
  for (auto& optimizer : optimizers_) {
    adopt_groups(optimizer, 0);
    optimizer.weights.set_lazy(optimizer.fused != nullptr && !options.materialize_master_grads());
    if (options.split_masters() && optimizer.weights.lazy()) optimizer.weights.split();
  }
}

std::optional<at::ScalarType> Amp::input_type() const {
  return enabled() ? properties_.cast_model_type : std::nullopt;
}

std::optional<at::ScalarType> Amp::output_type() const {
  if (!enabled()) return std::nullopt;
  if (options_.cast_model_outputs()) return options_.cast_model_outputs();
  return properties_.cast_model_type ? std::optional(at::kFloat) : std::nullopt;
}

LossScaler& Amp::loss_scaler(int64_t loss_id) {
  TORCH_CHECK_INDEX(loss_id >= 0 && loss_id < static_cast<int64_t>(loss_scalers_.size()),
                    "scale_loss: expected loss_id to be below num_losses, ", loss_scalers_.size(),
                    ", got ", loss_id);
  return loss_scalers_[loss_id];
}

void Amp::make_masters() {
  if (!properties_.master_weights.value_or(false) || !properties_.cast_model_type) return;
  std::unordered_set<const c10::TensorImpl*> stepped;
  for (const auto& optimizer : optimizers_) {
    for (const auto& group : optimizer.wrapped->param_groups()) {
      for (const auto& param : group.params()) stepped.insert(param.unsafeGetTensorImpl());
    }
  }
  for (const auto& model : models_) {
    for (const auto& param : params_to_cast(*model, *properties_.cast_model_type,
                                            properties_.keep_batchnorm_fp32.value_or(false))) {
      if (stepped.count(param.unsafeGetTensorImpl()) == 0) continue;
      masters_.emplace(param.unsafeGetTensorImpl(), MasterWeights::make_master(param));
    }
  }
}

void Amp::cast_models() {
  if (!properties_.cast_model_type) return;
  for (const auto& model : models_) {
    cast_module(*model, *properties_.cast_model_type,
                properties_.keep_batchnorm_fp32.value_or(false));
  }
}

void Amp::adopt_groups(OptimizerState& optimizer, size_t first_group) {
  const bool keeps_masters = properties_.master_weights.value_or(false);
  auto& groups = optimizer.wrapped->param_groups();
  for (size_t g = first_group; g < groups.size(); ++g) {
    for (at::Tensor& param : groups[g].params()) {
      at::Tensor master = master_of(param);
      if (!master.defined() && keeps_masters && is_low_precision(param.scalar_type())) {
        master = masters_[param.unsafeGetTensorImpl()] = MasterWeights::make_master(param);
      }
      optimizer.weights.track(param, master);
      if (!master.defined()) continue;
      move_state(*optimizer.wrapped, param, master);
      param = master;
    }
  }
  if (optimizer.weights.is_split()) optimizer.weights.split();
}

at::Tensor Amp::master_of(const at::Tensor& model_param) const {
  const auto found = masters_.find(model_param.unsafeGetTensorImpl());
  return found == masters_.end() ? at::Tensor() : found->second;
}

/// Who keeps the master of a parameter; null if it has none of its own.
MasterWeights* Amp::weights_of(const at::Tensor& model_param) {
  for (auto& optimizer : optimizers_) {
    const at::Tensor master = optimizer.weights.master_of(model_param);
    if (master.defined() && !master.is_same(model_param)) return &optimizer.weights;
  }
  return nullptr;
}

at::Tensor Amp::master_value(const at::Tensor& model_param) {
  const MasterWeights* weights = weights_of(model_param);
  return weights == nullptr ? at::Tensor() : weights->master_value(model_param);
}

void Amp::set_master_value(const at::Tensor& model_param, const at::Tensor& value) {
  MasterWeights* weights = weights_of(model_param);
  if (weights != nullptr) weights->set_master_value(model_param, value);
}

void Amp::refresh() {
  for (auto& optimizer : optimizers_) {
    if (optimizer.weights.refresh()) optimizer.skip = false;
    if (std::exchange(optimizer.may_have_stepped, false)) optimizer.weights.recopy_to_model();
  }
}

}  // namespace torchamp
