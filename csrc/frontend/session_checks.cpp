// The part of Session that checks what initialize is given, and says what it is about to do.
#include <c10/util/StringUtil.h>
#include <torchamp/cast.h>
#include <torchamp/logging.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>
#include <utility>

#include "frontend/device_grads.h"
#include "frontend/session.h"

namespace torchamp {
namespace {

using torch::nn::Module;

bool has_any(const Module& model, const std::unordered_set<const c10::TensorImpl*>& tensors) {
  const auto params = model.parameters();
  return std::any_of(params.begin(), params.end(), [&tensors](const at::Tensor& param) {
    return tensors.count(param.unsafeGetTensorImpl()) > 0;
  });
}

/// Whether parameters have the same names and sizes.
bool are_alike(const Module& model, const Module& other) {
  const auto params = model.named_parameters(), others = other.named_parameters();
  return params.size() == others.size() &&
         std::equal(params.begin(), params.end(), others.begin(), [](const auto& a, const auto& b) {
           return a.key() == b.key() && a->sizes() == b->sizes();
         });
}

/// The first names, and how many more there are.
std::string shown(const std::vector<std::string>& names) {
  constexpr size_t kFew = 4;
  std::string text;
  for (size_t i = 0; i < std::min(kFew, names.size()); ++i) {
    text += (i == 0 ? "\"" : ", \"") + names[i] + '"';
  }
  return names.size() > kFew ? c10::str(text, " and ", names.size() - kFew, " others") : text;
}

}  // namespace

/// Only parameters whose grads are to be unscaled must be real.
void Session::check_real() const {
  if (!keeps_masters() && properties_.loss_scale.fixed == 1.0) return;
  const auto stepped = this->stepped();
  for (size_t i = 0; i < models_.size(); ++i) {
    for (const auto& param : models_[i]->named_parameters()) {
      const bool is_trained =
          param->requires_grad() && stepped.count(param->unsafeGetTensorImpl()) > 0;
      TORCH_CHECK_TYPE(!param->is_complex() || !is_trained, "initialize: expected parameter \"",
                       param.key(), "\" of models[", i, "] to be real, got ", param->scalar_type(),
                       ", whose grads cannot be unscaled; make torch::view_as_real of it the "
                       "parameter, and use torch::view_as_complex in forward");
    }
  }
}

/// A clone, or a model that was made after the optimizer, looks like the model that it steps.
void Session::check_shares() {
  std::unordered_set<const c10::TensorImpl*> of_models;
  bool is_trained = false;
  for (const auto& model : models_) {
    for (const auto& param : model->parameters()) {
      of_models.insert(param.unsafeGetTensorImpl());
      is_trained |= param.requires_grad();
    }
  }
  if (!is_trained) return;
  std::vector<size_t> unrelated;
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    const auto params = params_of(*optimizers_[i].wrapped);
    const bool is_known =
        std::any_of(params.begin(), params.end(), [&of_models](const at::Tensor& param) {
          return of_models.count(param.unsafeGetTensorImpl()) > 0;
        });
    if (!is_known) unrelated.push_back(i);
  }
  TORCH_CHECK_VALUE(unrelated.empty() || unrelated.size() < optimizers_.size(),
                    "initialize: expected optimizers to have parameters of models, got none that "
                    "has any; make the optimizer after everything that replaces the model's "
                    "parameters");
  for (const size_t i : unrelated) {
    warn_once(c10::str("initialize: expected optimizers[", i,
                       "] to have parameters of models, got one that has none; pass all models "
                       "that it trains"));
  }
}

/// As a teacher in self-distillation, which is written by averages of the student.
void Session::warn_of_averages() {
  if (!c10::isReducedFloatingType(properties_.cast_model_type.value_or(at::kFloat))) return;
  const auto stepped = this->stepped();
  for (size_t i = 0; i < models_.size(); ++i) {
    const auto is_student = [&](const std::shared_ptr<Module>& other) {
      return has_any(*other, stepped) && are_alike(*models_[i], *other);
    };
    const auto student = std::find_if(models_.begin(), models_.end(), is_student);
    if (student == models_.end() || has_any(*models_[i], stepped)) continue;
    const auto k = student - models_.begin();
    warn_once(c10::str("initialize: expected an optimizer to step models[", i,
                       "], got a model like models[", k,
                       "] that none steps; if it averages models[", k,
                       "], its averages stall in 16 bits: leave it out and use "
                       "AveragedModel; if its weights stay as they are, leave it out and use "
                       "cast_for_inference"));
  }
}

void Session::warn_of_float64() {
  const auto dtype = properties_.cast_model_type;
  if (!dtype || *dtype == at::kDouble) return;
  for (size_t i = 0; i < models_.size(); ++i) {
    const auto params = models_[i]->named_parameters();
    const auto is_float64 = [](const auto& param) { return param->scalar_type() == at::kDouble; };
    const auto found = std::find_if(params.begin(), params.end(), is_float64);
    if (found == params.end()) continue;
    warn_once(c10::str("initialize: expected models[", i, "] to be in float32, got parameter \"",
                       found->key(), "\" in float64; it is rounded to ", *dtype,
                       ", and a master of it to float32"));
  }
}

/// Logs how many bytes the masters of frozen parameters take.
void Session::announce_frozen(const Masters& masters) const {
  if (!keeps_masters() || options_.verbosity() <= 0) return;
  int64_t params = 0, elements = 0;
  for (const auto& optimizer : optimizers_) {
    for (const auto& param : params_of(*optimizer.wrapped)) {
      const bool gets_master = c10::isReducedFloatingType(param.scalar_type()) ||
                               masters.count(param.unsafeGetTensorImpl()) > 0;
      if (param.requires_grad() || !gets_master) continue;
      ++params;
      elements += param.numel();
    }
  }
  if (params == 0) return;
  std::ostringstream text;
  text
      << "initialize: float32 masters of " << params << " frozen parameters take " << std::fixed
      << std::setprecision(1) << std::ldexp(elements, 2 - 20)
      << " MiB; leave them out of the optimizer, and pass them to add_param_group when they are to "
         "train";
  log_message(LogLevel::kInfo, text.str());
}

/// Logs which buffers are about to be rounded.
void Session::announce_buffers() const {
  const at::ScalarType dtype = properties_.cast_model_type.value_or(at::kFloat);
  if (!c10::isReducedFloatingType(dtype) || options_.verbosity() <= 0) return;
  std::vector<std::string> names;
  for (const auto& model : models_) {
    const bool keeps_norms = properties_.keep_batchnorm_fp32.value_or(false);
    for (const auto& each : buffers_to_cast(*model, dtype, keeps_norms, options_.keep_fp32())) {
      const bool is_new = std::find(names.begin(), names.end(), each.first) == names.end();
      if (is_new) names.push_back(each.first);
    }
  }
  if (names.empty()) return;
  log_message(LogLevel::kInfo, c10::str("initialize: buffers cast to ", dtype, ": ", shown(names),
                                        "; keep_fp32 takes the names of those that must stay in "
                                        "float32"));
}

}  // namespace torchamp
