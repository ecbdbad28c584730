#include <c10/util/Exception.h>
#include <torchamp/ops.h>
#include <torchamp/opt_level.h>

#include <cmath>
#include <cstdlib>
#include <utility>

#include "scaler/ranks.h"

namespace torchamp {
namespace {

constexpr const char* kNames[] = {"O0", "O1", "O2", "O3", "O4", "O5"};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

/// A suggestion for a `text` that is none: O1 for "01" and "o1", and levels of the precisions that
/// other libraries name, such as "bf16-mixed" and "16".
std::string suggestion(const std::string& text) {
  if (contains(text, "bf16") || contains(text, "bfloat16")) {
    return "; did you mean \"O4\" (ops in bfloat16) or \"O5\" (a bfloat16 model)?";
  }
  if (contains(text, "16") || contains(text, "half")) {
    return "; did you mean \"O1\" (ops in float16) or \"O2\" (a float16 model)?";
  }
  const bool near_miss =
      text.size() == 2 && (text[0] == '0' || text[0] == 'o') && text[1] >= '0' && text[1] <= '5';
  return near_miss ? std::string("; did you mean \"O") + text[1] + "\" (letter O, digit)?" : "";
}

bool is_autocast_level(OptLevel level) {
  return level == OptLevel::O1 || level == OptLevel::O4;
}

[[noreturn]] void refuse(const char* property, OptLevel level, const char* why) {
  TORCH_CHECK(false, "initialize: ", property, " cannot be set at opt_level ", name(level), ": ",
              why);
}

/// Throws unless the level's products are in bfloat16, which is wide enough for e5m2's range.
void check_float8(const Properties& properties) {
  const OptLevel level = properties.opt_level;
  if (level == OptLevel::O0) refuse("float8", level, "its products are in float32: use O4 or O5");
  if (level != OptLevel::O4 && level != OptLevel::O5) {
    refuse("float8", level, "float16 has 5 exponent bits, as e5m2 has: use O4 or O5");
  }
  const auto dtype = level == OptLevel::O4 ? properties.autocast_type : properties.cast_model_type;
  if (dtype != c10::kBFloat16) {
    refuse("float8", level, "only products in bfloat16 are computed in it, and others are chosen");
  }
}

}  // namespace

const char* detail::checked_text(const char* option, const char* text) {
  TORCH_CHECK_VALUE(text != nullptr, "initialize: expected ", option,
                    " to be text, got a null pointer, which std::getenv returns for a variable "
                    "that is not set");
  return text;
}

int64_t detail::at_least_one(const char* option, int64_t value) {
  TORCH_CHECK_VALUE(value >= 1, "initialize: expected ", option, " to be at least 1, got ", value);
  return value;
}

OptLevel parse_opt_level(const std::string& text) {
  for (int level = 0; level < 6; ++level) {
    if (text == kNames[level]) return static_cast<OptLevel>(level);
  }
  TORCH_CHECK(false,
              "initialize: expected opt_level to be one of \"O0\", \"O1\", \"O2\", \"O3\", \"O4\", "
              "\"O5\", got \"",
              text, "\"", suggestion(text));
}

const char* name(OptLevel opt_level) {
  return kNames[static_cast<int>(opt_level)];
}

std::ostream& operator<<(std::ostream& stream, OptLevel opt_level) {
  return stream << name(opt_level);
}

LossScale::LossScale(const std::string& text) {
  if (text == "dynamic") return;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  TORCH_CHECK_VALUE(!text.empty() && *end == '\0',
                    "initialize: expected loss_scale to be \"dynamic\" or a number, got \"", text,
                    "\"");
  fixed = value;
}

Properties default_properties(OptLevel level) {
  constexpr auto kNone = std::nullopt;
  // The dtypes of model and ops, float32 batch norms, masters, the loss scale.
  switch (level) {
    case OptLevel::O0:
      return {level, c10::kFloat, kNone, kNone, false, 1.0};
    case OptLevel::O1:
      return {level, kNone, c10::kHalf, kNone, kNone, "dynamic"};
    case OptLevel::O2:
      return {level, c10::kHalf, kNone, true, true, "dynamic"};
    case OptLevel::O3:
      return {level, c10::kHalf, kNone, false, false, 1.0};
    case OptLevel::O4:
      return {level, kNone, c10::kBFloat16, kNone, kNone, 1.0};
    case OptLevel::O5:
      return {level, c10::kBFloat16, kNone, true, true, 1.0};
  }
  return {};
}

Options& Options::cast_model_type(c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(c10::isFloatingType(dtype) && c10::elementSize(dtype) >= 2,
                   "initialize: expected cast_model_type to be a floating dtype of 16 bits or "
                   "more, got ",
                   dtype);
  cast_model_type_ = std::optional<c10::ScalarType>(dtype);
  return *this;
}

Options& Options::keep_batchnorm_fp32(const std::string& text) {
  TORCH_CHECK_VALUE(
      text == "True" || text == "False",
      "initialize: expected keep_batchnorm_fp32 to be a boolean, \"True\" or \"False\", got \"",
      text, "\"");
  return keep_batchnorm_fp32(text == "True");
}

Options& Options::float8(std::vector<std::string> names) {
  TORCH_CHECK_VALUE(!names.empty(), "initialize: expected float8 to name modules, got no names");
  float8_ = std::move(names);
  return *this;
}

Options& Options::loss_scale(LossScale value) {
  TORCH_CHECK_VALUE(value.dynamic() || (std::isfinite(*value.fixed) && *value.fixed > 0),
                    "initialize: expected loss_scale to be positive and finite, got ",
                    value.fixed.value_or(0));
  loss_scale_ = value;
  return *this;
}

Options& Options::cast_model_outputs(c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(c10::isFloatingType(dtype),
                   "initialize: expected cast_model_outputs to be a floating dtype, got ", dtype);
  cast_model_outputs_ = dtype;
  return *this;
}

Options& Options::process_group(Agreement ranks) {
  check_ranks("initialize", ranks);
  process_group_ = std::move(ranks);
  return *this;
}

Properties Options::resolve() const {
  Properties result = default_properties(opt_level_);
  const bool casts_ops = is_autocast_level(opt_level_);
  if (cast_model_type_) {
    if (casts_ops && cast_model_type_->value_or(c10::kFloat) != c10::kFloat) {
      refuse("cast_model_type", opt_level_,
             "its weights stay in float32 and autocast chooses the type of each op");
    }
    result.cast_model_type = *cast_model_type_;
  }
  if (autocast_) {
    if (*autocast_ && !casts_ops) {
      refuse("patch_torch_functions", opt_level_, "only O1 and O4 cast op by op");
    }
    if (!*autocast_) result.autocast_type.reset();
  }
  if (keep_batchnorm_fp32_) {
    if (casts_ops)
      refuse("keep_batchnorm_fp32", opt_level_, "batch norm is always float32 at this level");
    result.keep_batchnorm_fp32 = keep_batchnorm_fp32_;
  }
  if (master_weights_) {
    if (casts_ops)
      refuse("master_weights", opt_level_, "the model's own weights are float32 already");
    result.master_weights = master_weights_;
  }
  if (loss_scale_) result.loss_scale = *loss_scale_;
  if (float8_) check_float8(result);
  const double low = min_loss_scale_.value_or(ops::ScaleRule().min_scale);
  TORCH_CHECK_VALUE(0 <= low && low <= max_loss_scale_,
                    "initialize: expected min_loss_scale to be between 0 and max_loss_scale, got ",
                    low, " and ", max_loss_scale_);
  return result;
}

}  // namespace torchamp
