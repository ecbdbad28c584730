#include <c10/util/StringUtil.h>
#include <torchamp/amp_state.h>

#include "frontend/describe.h"
#include "frontend/session.h"
#include "ops/backward_report.h"

namespace torchamp {
namespace {

std::string shown_scale(const LossScaler& scaler) {
  if (may_be_captured(scaler.device())) return "on the device";
  return c10::str(scaler.loss_scale());
}

/// `a, b`, of objects by `text_of`.
template <class Objects, class Function>
std::string joined_text(const Objects& objects, const Function& text_of) {
  std::string text;
  for (const auto& object : objects) {
    text += (text.empty() ? "" : ", ") + text_of(object);
  }
  return text;
}

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  if (dtype == at::kHalf) return "float16";
  if (dtype == at::kBFloat16) return "bfloat16";
  return dtype == at::kFloat ? "float32" : c10::str(dtype);
}

std::vector<std::pair<std::string, std::string>> describe(const Properties& properties) {
  std::vector<std::pair<std::string, std::string>> lines;
  if (properties.cast_model_type) {
    lines.emplace_back("weights", dtype_name(*properties.cast_model_type));
  }
  const bool is_low = properties.cast_model_type.value_or(at::kFloat) != at::kFloat;
  if (is_low && properties.keep_batchnorm_fp32.value_or(false)) {
    lines.emplace_back("batch norms", "float32");
  }
  if (properties.autocast_type) {
    lines.emplace_back("ops", dtype_name(*properties.autocast_type) + " where that is safe");
  }
  if (properties.master_weights.value_or(false)) lines.emplace_back("masters", "float32");
  const LossScale& scale = properties.loss_scale;
  lines.emplace_back("loss scale", scale.dynamic() ? "dynamic" : c10::str(*scale.fixed));
  return lines;
}

std::ostream& operator<<(std::ostream& stream, const Properties& properties) {
  const auto text_of = [](const auto& entry) { return entry.first + ": " + entry.second; };
  return stream << name(properties.opt_level) << " (" << joined_text(describe(properties), text_of)
                << ')';
}

std::ostream& operator<<(std::ostream& stream, const LossScaler& scaler) {
  stream << "LossScaler(loss_scale=" << shown_scale(scaler);
  if (scaler.dynamic()) {
    const ops::ScaleRule& rule = scaler.rule();
    stream << ", dynamic, growth_factor=" << rule.growth_factor
           << ", backoff_factor=" << rule.backoff_factor
           << ", growth_interval=" << rule.growth_interval << ", min_scale=" << rule.min_scale
           << ", max_scale=" << rule.max_scale;
  } else {
    stream << ", fixed";
  }
  return stream << ", device=" << scaler.device() << ')';
}

std::ostream& operator<<(std::ostream& stream, const Amp& amp) {
  if (!amp.enabled()) return stream << "Amp(enabled=false)";
  const auto class_of = [](const auto& model) { return model->name(); };
  return stream << "Amp(" << amp.properties()
                << ", models: " << joined_text(amp.session().models(), class_of)
                << ", loss scales: " << joined_text(amp.loss_scalers(), shown_scale) << ')';
}

}  // namespace torchamp
