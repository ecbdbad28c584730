#include "frontend/session.h"

#include <torch/nn/modules/embedding.h>
#include <torchamp/cast.h>
#include <torchamp/logging.h>
#include <torchamp/optim/fused_optimizer.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "checkpoint/float32_saves.h"
#include "float8/choice.h"
#include "frontend/device_grads.h"
#include "frontend/session_checks.h"
#include "ops/memory.h"

namespace torchamp {
namespace {

using torch::nn::Module;

/// The parameters that sessions have cast to 16 bits, and no release has made float32 since.
class Rounded {
 public:
  void add(const std::vector<at::Tensor>& params) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto each = params_.begin(); each != params_.end();) {
      each = each->second.expired() ? params_.erase(each) : std::next(each);
    }
    for (const at::Tensor& param : params) {
      params_.emplace(param.unsafeGetTensorImpl(), Known(param.getIntrusivePtr()));
    }
  }
  void remove(const at::Tensor& param) {
    const std::lock_guard<std::mutex> lock(mutex_);
    params_.erase(param.unsafeGetTensorImpl());
  }
  bool has(const at::Tensor& param) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return params_.count(param.unsafeGetTensorImpl()) > 0;
  }

 private:
  using Known = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Known> params_;  ///< whose memory is not reused
};

/// Never destroyed: sessions may outlive other statics.
Rounded& rounded() {
  static auto& instance = *new Rounded;
  return instance;
}

void check_model(const Module& model) {
  for (const auto& param : model.named_parameters()) {
    const std::string name = "parameter \"" + param.key() + "\"";
    check_memory("initialize", name.c_str(), *param, /*takes_meta=*/false);
    if (!param->requires_grad()) continue;
    const bool is_known = core::param_of(*param) != nullptr || rounded().has(*param);
    TORCH_CHECK(!is_known || !c10::isReducedFloatingType(param->scalar_type()),
                "initialize: expected a model that is not initialized already, got ", name, " in ",
                param->scalar_type(),
                " of an earlier initialize; pass all models and optimizers that belong together to "
                "one call, or end the earlier training by torchamp::release. Where its Amp is "
                "gone, to(torch::kFloat) makes the model float32");
    TORCH_CHECK(param->scalar_type() != at::kHalf, "initialize: expected a float32 model, got ",
                name,
                " in Half. initialize casts the model itself: remove the call of "
                "to(torch::kHalf), or freeze what does not train by set_requires_grad(false). A "
                "clone of a model in training becomes float32 by to(torch::kFloat)");
  }
}

void check_kept(const std::vector<std::string>& names,
                const std::vector<std::shared_ptr<Module>>& models) {
  for (const auto& name : names) {
    const auto has_it = [&name](const std::shared_ptr<Module>& model) {
      const bool is_module = !name.empty() && model->named_modules().contains(name);
      return is_module || model->named_buffers().contains(name);
    };
    TORCH_CHECK_VALUE(
        std::any_of(models.begin(), models.end(), has_it),
        "initialize: expected keep_fp32 to name modules or buffers in the model, got \"", name,
        "\"");
  }
}

void check_each_once(const OptimizerRefs& optimizers) {
  for (size_t i = 0; i < optimizers.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      TORCH_CHECK_VALUE(&optimizers[i].get() != &optimizers[j].get(),
                        "initialize: expected each optimizer once, got optimizers[", j,
                        "] again as optimizers[", i, "]");
    }
  }
}

std::vector<GivenParams::Named> named_params(const std::vector<std::shared_ptr<Module>>& models) {
  std::vector<GivenParams::Named> named;
  for (const auto& model : models) {
    named.emplace_back();
    for (const auto& param : model->named_parameters()) named.back().push_back(param.pair());
  }
  return named;
}

GivenParams given_params(const std::vector<std::shared_ptr<Module>>& models,
                         const OptimizerRefs& optimizers, const Options& options,
                         const Properties& properties) {
  std::vector<at::Tensor> cast;
  for (const auto& model : models) {
    if (!properties.cast_model_type) continue;
    const auto changed =
        params_to_cast(*model, *properties.cast_model_type,
                       properties.keep_batchnorm_fp32.value_or(false), options.keep_fp32());
    cast.insert(cast.end(), changed.begin(), changed.end());
  }
  std::vector<std::vector<at::Tensor>> stepped;
  std::vector<size_t> rounding;
  for (torch::optim::Optimizer& optimizer : optimizers) {
    const auto* const fused = dynamic_cast<const optim::FusedOptimizer*>(&optimizer);
    if (fused != nullptr && fused->storage().stochastic_rounding()) {
      rounding.push_back(stepped.size());
    }
    stepped.push_back(params_of(optimizer));
  }
  return {named_params(models), std::move(stepped), std::move(cast), properties,
          std::move(rounding)};
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

template <class... Kinds>
bool is_one_of(const Module& module) {
  return ((module.as<Kinds>() != nullptr) || ...);
}

/// The two-dimensional parameters of a model. kept: whether initialize leaves one in float32.
template <class IsKept>
float8::Candidates candidates_of(const Module& model, const IsKept& is_kept) {
  using torch::nn::EmbeddingBagImpl;
  using torch::nn::EmbeddingImpl;
  float8::Candidates found;
  const auto modules = model.named_modules("", /*include_self=*/false);
  for (const auto& module : modules) found.modules.push_back(module.key());
  for (const auto& param : model.named_parameters()) {
    found.num_params += param->numel();
    if (param->dim() != 2 || !param->is_floating_point()) continue;
    const auto* const owner = modules.find(param.key().substr(0, param.key().rfind('.')));
    const bool is_embedding =
        owner != nullptr && is_one_of<EmbeddingImpl, EmbeddingBagImpl>(**owner);
    found.matrices.push_back({param.key(), *param, is_embedding, is_kept(*param)});
  }
  return found;
}

/// None where options do not ask for float8.
float8::Choice choose_for_float8(const std::vector<std::shared_ptr<Module>>& models,
                                 const GivenParams& given, const Options& options) {
  if (!options.float8()) return {};
  const auto dtype = given.properties.cast_model_type;
  const auto is_kept = [&](const at::Tensor& param) {
    const auto is_it = [&](const at::Tensor& each) { return each.is_same(param); };
    return dtype && param.scalar_type() != *dtype &&
           std::none_of(given.cast.begin(), given.cast.end(), is_it);
  };
  std::vector<float8::Candidates> candidates;
  for (const auto& model : models) candidates.push_back(candidates_of(*model, is_kept));
  return float8::choose(candidates, *options.float8());
}

LossScalerOptions scaler_options(const Options& options, const Properties& properties) {
  LossScalerOptions scaler;
  scaler.loss_scale = properties.loss_scale;
  scaler.rule.min_scale = options.min_loss_scale().value_or(scaler.rule.min_scale);
  scaler.rule.max_scale = options.max_loss_scale();
  return scaler;
}

/// Logs which buffers that rounds.
void cast_models(const std::vector<std::shared_ptr<Module>>& models, const Options& options,
                 const Properties& properties, const Notices& notices) {
  if (!properties.cast_model_type) return;
  const at::ScalarType dtype = *properties.cast_model_type;
  const bool keeps_norms = properties.keep_batchnorm_fp32.value_or(false);
  std::vector<std::string> buffers;
  for (const auto& model : models) {
    for (const auto& each : buffers_to_cast(*model, dtype, keeps_norms, options.keep_fp32())) {
      buffers.push_back(each.first);
    }
  }
  notices.tell(rounded_buffers(buffers, dtype));
  for (const auto& model : models) {
    cast_module(*model, dtype, keeps_norms, options.keep_fp32());
    checkpoint::save_in_float32(model->parameters());
    checkpoint::save_in_float32(model->buffers());
  }
}

}  // namespace

void Notices::tell(const std::string& text) const {
  if (!is_quiet_ && !text.empty()) log_message(LogLevel::kInfo, text);
}

void Notices::warn_once(const std::string& text) {
  if (is_quiet_) return;
  std::unique_lock lock(mutex_);
  const bool is_new = warned_.insert(text).second;
  lock.unlock();  // the sink may use the models
  if (is_new) log_message(LogLevel::kWarning, text);
}

Session::Session(std::vector<std::shared_ptr<Module>> models, const OptimizerRefs& optimizers,
                 const Options& options)
    : options_(options),
      properties_(options.resolve()),
      models_(std::move(models)),
      notices_(options.verbosity()) {
  for (size_t i = 0; i < models_.size(); ++i) {
    TORCH_CHECK_VALUE(models_[i] != nullptr,
                      "initialize: expected modules, got a null pointer as "
                      "models[",
                      i, "]");
  }
  check_each_once(optimizers);
  for (torch::optim::Optimizer& optimizer : optimizers) {
    optimizers_.emplace_back(optimizer, masters_);
  }
  if (!enabled()) return;
  for (const auto& model : models_) check_model(*model);
  check_kept(options.keep_fp32(), models_);
  const GivenParams given = given_params(models_, optimizers, options, properties_);
  given.check();
  for (const std::string& text : given.warnings()) notices_.warn_once(text);
  const at::Device device = given.device();
  const float8::Choice in_float8 = choose_for_float8(models_, given, options_);
  if (properties_.autocast_type) {
    casts_.autocast.emplace(device_types_of(models_), *properties_.autocast_type);
  }
  for (int64_t i = 0; i < options.num_losses(); ++i) {
    loss_scalers_.emplace_back(scaler_options(options_, properties_), device);
    loss_scalers_.back().set_agreement(options_.process_group());
  }
  std::unordered_map<const c10::TensorImpl*, at::Tensor> masters;
  for (const at::Tensor& param : given.mastered()) {
    masters.emplace(param.unsafeGetTensorImpl(), core::make_master(param));
  }
  notices_.tell(given.frozen_masters());
  notices_.tell(in_float8.text);
  cast_models(models_, options_, properties_, notices_);
  if (options.adopt_data_writes()) masters_->adopt_data_writes();
  for (auto& optimizer : optimizers_) {
    for (const at::Tensor& param : params_of(*optimizer.wrapped)) {
      const auto master = masters.find(param.unsafeGetTensorImpl());
      optimizer.state->add("initialize", param,
                           master == masters.end() ? at::Tensor() : master->second);
    }
    follow_groups(optimizer);
    optimizer.note_count();
    const bool is_one_pass = optimizer.fused != nullptr && !options.materialize_master_grads();
    optimizer.state->grads().one_pass().switch_to(is_one_pass);
  }
  if (options.float8()) {
    casts_.float8 = float8::Weights::open(in_float8.linears, casts_.autocast.has_value());
  }
  const bool rounds = c10::isReducedFloatingType(input_type().value_or(at::kFloat));
  if (rounds && !optimizers_.empty()) rounded().add(given.cast);
}

void forget_rounded(const std::vector<std::shared_ptr<Module>>& models) {
  for (const auto& model : models) {
    for (const at::Tensor& param : model->parameters()) rounded().remove(param);
  }
}

std::optional<at::ScalarType> Session::input_type() const {
  if (!enabled()) return std::nullopt;
  return is_lent() && properties_.cast_model_type ? at::kFloat : properties_.cast_model_type;
}

std::optional<at::ScalarType> Session::output_type() const {
  if (!enabled()) return std::nullopt;
  if (options_.cast_model_outputs()) return options_.cast_model_outputs();
  const bool casts = properties_.cast_model_type || properties_.autocast_type;
  return casts ? std::optional(at::kFloat) : std::nullopt;
}

LossScaler& Session::loss_scaler(int64_t loss_id) {
  TORCH_CHECK_INDEX(loss_id >= 0 && loss_id < static_cast<int64_t>(loss_scalers_.size()),
                    "scale_loss: expected loss_id to be below num_losses, ", loss_scalers_.size(),
                    ", got ", loss_id);
  return loss_scalers_[loss_id];
}

std::string Session::name_of(const at::Tensor& param) const {
  return torchamp::name_of(param, named_params(models_));
}

}  // namespace torchamp
