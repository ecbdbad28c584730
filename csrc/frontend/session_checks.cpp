#include "frontend/session_checks.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <optional>
#include <sstream>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "core/optimizer_state.h"
#include "frontend/describe.h"

namespace torchamp {
namespace {

using Named = GivenParams::Named;
using Texts = std::vector<std::string>;

class Tensors {
 public:
  explicit Tensors(const std::vector<at::Tensor>& all = {}) { add(all); }
  void add(const std::vector<at::Tensor>& all) {
    for (const at::Tensor& tensor : all) insert(tensor);
  }
  bool insert(const at::Tensor& tensor) { return set_.insert(tensor.unsafeGetTensorImpl()).second; }
  bool has(const at::Tensor& tensor) const { return set_.count(tensor.unsafeGetTensorImpl()) > 0; }
  bool has_any(const Named& params) const {
    return std::any_of(params.begin(), params.end(),
                       [this](const auto& param) { return has(param.second); });
  }

 private:
  std::unordered_set<const c10::TensorImpl*> set_;
};

Tensors stepped(const GivenParams& given) {
  Tensors all;
  for (const auto& params : given.optimizers) all.add(params);
  return all;
}

bool keeps_masters(const GivenParams& given) {
  return given.properties.master_weights.value_or(false);
}

void check_owners(const GivenParams& given) {
  const Tensors cast(given.cast);
  std::unordered_map<const c10::TensorImpl*, size_t> owners;
  for (size_t i = 0; i < given.optimizers.size(); ++i) {
    Tensors own;
    for (const at::Tensor& param : given.optimizers[i]) {
      TORCH_CHECK_VALUE(own.insert(param), "initialize: expected each parameter of optimizers[", i,
                        "] once, got one of sizes ", param.sizes(), " twice");
      TORCH_CHECK(!param.is_inference(), "initialize: expected the parameters of optimizers[", i,
                  "] to be trainable, got one, of sizes ", param.sizes(),
                  ", of the inference mode; make the model outside of it");
      if (const auto known = core::param_of(param)) core::check_unowned("initialize", *known);
      const auto [owner, is_first] = owners.emplace(param.unsafeGetTensorImpl(), i);
      TORCH_CHECK_VALUE(is_first || !keeps_masters(given) || !cast.has(param),
                        "initialize: expected parameter \"", name_of(param, given.models),
                        "\", which gets a float32 master, in one optimizer, got it in optimizers[",
                        owner->second, "] and optimizers[", i, "]; ", core::kOneOwner);
    }
  }
}

/// The optimizers that step no parameter of the models, which have one to train. A clone, or a
/// model that was made after the optimizer, looks like the model that it steps.
std::vector<size_t> unrelated(const GivenParams& given) {
  Tensors of_models;
  bool is_trained = false;
  for (const Named& params : given.models) {
    for (const auto& param : params) {
      of_models.insert(param.second);
      is_trained |= param.second.requires_grad();
    }
  }
  std::vector<size_t> unrelated;
  for (size_t i = 0; is_trained && i < given.optimizers.size(); ++i) {
    const auto& params = given.optimizers[i];
    const bool is_known = std::any_of(params.begin(), params.end(),
                                      [&](const auto& param) { return of_models.has(param); });
    if (!is_known) unrelated.push_back(i);
  }
  return unrelated;
}

/// Only parameters whose grads are to be unscaled must be real.
void check_real(const GivenParams& given) {
  if (!keeps_masters(given) && given.properties.loss_scale.fixed == 1.0) return;
  const Tensors stepped_params = stepped(given);
  for (size_t i = 0; i < given.models.size(); ++i) {
    for (const auto& [name, param] : given.models[i]) {
      const bool is_trained = param.requires_grad() && stepped_params.has(param);
      TORCH_CHECK_TYPE(!param.is_complex() || !is_trained, "initialize: expected parameter \"",
                       name, "\" of models[", i,
                       "] to be real, got a complex one, whose grads cannot be unscaled; make "
                       "view_as_real of it the parameter, and use view_as_complex in forward");
    }
  }
}

/// Whether parameters have the same names and sizes.
bool are_alike(const Named& params, const Named& others) {
  return std::equal(params.begin(), params.end(), others.begin(), others.end(),
                    [](const auto& a, const auto& b) {
                      return a.first == b.first && a.second.sizes() == b.second.sizes();
                    });
}

/// As a teacher in self-distillation, which is written by averages of the student.
void warn_of_averages(const GivenParams& given, Texts& texts) {
  if (!c10::isReducedFloatingType(given.properties.cast_model_type.value_or(at::kFloat))) return;
  const Tensors trained = stepped(given);
  for (const Named& own : given.models) {
    const auto student = std::find_if(
        given.models.begin(), given.models.end(),
        [&](const Named& other) { return trained.has_any(other) && are_alike(own, other); });
    if (student == given.models.end() || trained.has_any(own)) continue;
    const auto k = student - given.models.begin();
    texts.push_back(c10::str("initialize: expected an optimizer to step models[",
                             &own - given.models.data(), "], got a model like models[", k,
                             "] that none steps; if it averages models[", k,
                             "], its averages stall in 16 bits: leave it out and use "
                             "AveragedModel; if its weights stay as they are, leave it out and use "
                             "cast_for_inference"));
  }
}

/// Whether two parameters are equal, and not because of one number that fills both, as in norms.
/// Waits for the device.
bool are_copies(const at::Tensor& param, const at::Tensor& other) {
  const bool are_comparable = param.sizes() == other.sizes() && param.device() == other.device() &&
                              param.scalar_type() == other.scalar_type() && !param.is_meta();
  if (!are_comparable || param.dim() < 2 || param.numel() == 0) return false;
  const at::Tensor own = param.detach(), others = other.detach();
  return at::equal(own[0], others[0]) && at::equal(own, others) &&
         own.ne(own.min()).any().item<bool>();
}

/// Cuts the components that both names end in: "key.0.weight" and "query.0.weight" become "key" and
/// "query".
void cut_common_end(std::string& name, std::string& other) {
  for (size_t dot = name.rfind('.'); dot != std::string::npos; dot = name.rfind('.')) {
    const size_t others = other.rfind('.');
    if (others == std::string::npos || name.substr(dot) != other.substr(others)) return;
    name.resize(dot);
    other.resize(others);
  }
}

/// As of a momentum encoder, which is a copy of another part of its model.
void warn_of_averaged_parts(const GivenParams& given, Texts& texts) {
  if (!c10::isReducedFloatingType(given.properties.cast_model_type.value_or(at::kFloat))) return;
  const Tensors trained = stepped(given), cast(given.cast);
  for (const Named& params : given.models) {
    for (const auto& [name, param] : params) {
      if (trained.has(param) || !cast.has(param)) continue;
      std::string copy = name, original;
      for (const auto& [other_name, other] : params) {
        if (!trained.has(other) || !are_copies(param, other)) continue;
        std::string part = name, others = other_name;
        cut_common_end(part, others);
        if (part.size() < copy.size()) std::tie(copy, original) = std::tie(part, others);
      }
      if (original.empty()) continue;
      const std::string text =
          c10::str("initialize: expected an optimizer to step \"", copy, "\" of models[",
                   &params - given.models.data(), "], got a copy of \"", original,
                   "\" that none steps; if it averages \"", original,
                   "\", its averages stall in 16 bits: name \"", copy, "\" in keep_fp32");
      if (texts.empty() || texts.back() != text) texts.push_back(text);
    }
  }
}

void warn_of_float64(const GivenParams& given, Texts& texts) {
  const Properties& properties = given.properties;
  const auto dtype =
      properties.autocast_type ? properties.autocast_type : properties.cast_model_type;
  if (!dtype || *dtype == at::kDouble) return;
  const std::string what =
      properties.autocast_type
          ? c10::str("its ops are not cast to ", dtype_name(*dtype))
          : c10::str("it is rounded to ", dtype_name(*dtype), ", and a master of it to float32");
  for (size_t i = 0; i < given.models.size(); ++i) {
    const Named& params = given.models[i];
    const auto found = std::find_if(params.begin(), params.end(), [](const auto& param) {
      return param.second.scalar_type() == at::kDouble;
    });
    if (found == params.end()) continue;
    texts.push_back(c10::str("initialize: expected models[", i,
                             "] to be in float32, got parameter \"", found->first,
                             "\" in float64; ", what));
  }
}

void warn_of_rounding(const GivenParams& given, Texts& texts) {
  if (!keeps_masters(given)) return;
  for (const size_t i : given.rounding) {
    texts.push_back(c10::str("initialize: expected optimizers[", i,
                             "] without stochastic_rounding, which is of bfloat16 parameters that "
                             "have no masters, got one with it, which changes nothing; set "
                             "master_weights to false, or leave it out"));
  }
}

}  // namespace

std::string name_of(const at::Tensor& param, const std::vector<Named>& models) {
  for (size_t i = 0; i < models.size(); ++i) {
    for (const auto& [name, each] : models[i]) {
      if (!each.is_same(param)) continue;
      return models.size() > 1 ? c10::str("models[", i, "].", name) : name;
    }
  }
  return "";
}

void GivenParams::check() const {
  check_owners(*this);
  TORCH_CHECK_VALUE(optimizers.empty() || unrelated(*this).size() < optimizers.size(),
                    "initialize: expected optimizers to have parameters of models, got none that "
                    "has any; make the optimizer after everything that replaces the model's "
                    "parameters");
  check_real(*this);
}

std::vector<std::string> GivenParams::warnings() const {
  Texts texts;
  for (const size_t i : unrelated(*this)) {
    texts.push_back(c10::str("initialize: expected optimizers[", i,
                             "] to have parameters of models, got one that has none; pass all "
                             "models that it trains"));
  }
  warn_of_averages(*this, texts);
  warn_of_averaged_parts(*this, texts);
  warn_of_float64(*this, texts);
  warn_of_rounding(*this, texts);
  return texts;
}

at::Device GivenParams::device() const {
  std::optional<at::Device> found;
  for (size_t i = 0; i < optimizers.size(); ++i) {
    for (const at::Tensor& param : optimizers[i]) {
      TORCH_CHECK(!found || param.device() == *found,
                  "initialize: expected the parameters of all optimizers to be on one device, ",
                  *found, ", got one on ", param.device(), " in optimizers[", i, "]");
      found = param.device();
    }
  }
  for (const Named& params : models) {
    if (!found && !params.empty()) found = params.front().second.device();
  }
  return found.value_or(at::kCPU);
}

std::vector<at::Tensor> GivenParams::mastered() const {
  std::vector<at::Tensor> params;
  const Tensors trained = stepped(*this);
  Tensors seen;
  for (const at::Tensor& param : cast) {
    const bool gets_master = keeps_masters(*this) && trained.has(param);
    if (gets_master && seen.insert(param)) params.push_back(param);
  }
  return params;
}

std::string GivenParams::frozen_masters() const {
  const Tensors changed(cast);
  int64_t params = 0, elements = 0;
  for (const auto& optimizer : optimizers) {
    for (const at::Tensor& param : optimizer) {
      const bool is_low = c10::isReducedFloatingType(param.scalar_type());
      if (param.requires_grad() || !(is_low || changed.has(param))) continue;
      ++params;
      elements += param.numel();
    }
  }
  if (params == 0 || !keeps_masters(*this)) return "";
  std::ostringstream text;
  text << "initialize: float32 masters of " << params << " frozen parameters take " << std::fixed
       << std::setprecision(1) << std::ldexp(elements, 2 - 20)
       << " MiB; leave them out of the optimizer, and pass them to add_param_group when they are "
          "to train";
  return text.str();
}

std::string rounded_buffers(const std::vector<std::string>& names, at::ScalarType dtype) {
  constexpr size_t kFew = 4;
  Texts once;
  for (const std::string& name : names) {
    if (std::find(once.begin(), once.end(), name) == once.end()) once.push_back(name);
  }
  if (once.empty() || !c10::isReducedFloatingType(dtype)) return "";
  std::string text = "initialize: buffers cast to " + dtype_name(dtype);
  for (size_t i = 0; i < std::min(kFew, once.size()); ++i) {
    text += (i == 0 ? ": \"" : ", \"") + once[i] + '"';
  }
  if (once.size() > kFew) text += c10::str(" and ", once.size() - kFew, " others");
  return text + "; keep_fp32 takes the names of those that must stay in float32";
}

}  // namespace torchamp
