// Stage 1: choose. An opt level is a set of property defaults; overrides change single properties.
#pragma once

#include <c10/core/ScalarType.h>
#include <torchamp/agreement.h>
#include <torchamp/detail/export.h>
#include <torchamp/detail/misuse.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace torchamp {
/// @addtogroup choose
/// @{

/// A set of defaults of Properties.
enum class OptLevel {
  O0,  ///< float32
  O1,  ///< float32 model, autocast to float16
  O2,  ///< float16 model, float32 batch norm and master weights
  O3,  ///< float16 throughout
  O4,  ///< O1 in bfloat16
  O5,  ///< O2 in bfloat16
};

namespace detail {
/// `text`; throws ValueError for a null pointer, as of getenv, which names `option`.
TORCHAMP_API const char* checked_text(const char* option, const char* text);
/// `value`; throws ValueError below 1, which names `option`.
TORCHAMP_API int64_t at_least_one(const char* option, int64_t value);
}  // namespace detail

/// Parses "O0" … "O5"; the RuntimeError for a near miss ("01", "o2") suggests the level.
TORCHAMP_API OptLevel parse_opt_level(const std::string& text);
/// "O0" … "O5".
TORCHAMP_API const char* name(OptLevel opt_level);
/// Its name.
TORCHAMP_API std::ostream& operator<<(std::ostream& stream, OptLevel opt_level);

/// "dynamic", or a fixed factor.
struct LossScale {
  /// A fixed factor, a number; initialize requires it to be positive and finite.
  template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
  LossScale(T factor) : fixed(static_cast<double>(factor)) {
    static_assert(!std::is_same_v<T, bool>,
                  "a bool is no scale: loss_scale takes \"dynamic\" or a number");
  }
  /// Throws unless `text` is "dynamic" or a positive number.
  TORCHAMP_API LossScale(const std::string& text);
  /// Takes a C string. Throws as for a std::string.
  LossScale(const char* text) : LossScale(std::string(detail::checked_text("loss_scale", text))) {}

  /// Whether it is dynamic.
  bool dynamic() const { return !fixed.has_value(); }

  std::optional<double> fixed;  ///< empty: dynamic
};

/// The properties that initialize applies. Those that the level does not set are empty.
struct Properties {
  OptLevel opt_level = OptLevel::O1;  ///< the level
  std::optional<c10::ScalarType>
      cast_model_type;  ///< dtype of the model's parameters, buffers and inputs
  std::optional<c10::ScalarType> autocast_type;  ///< dtype that autocast casts ops to
  std::optional<bool> keep_batchnorm_fp32;       ///< batch norms stay in float32
  std::optional<bool> master_weights;            ///< optimizers step float32 copies
  LossScale loss_scale = 1.0;                    ///< of every loss
};

/// One line: the level, the dtypes of weights, batch norms, ops and masters, the loss scale.
TORCHAMP_API std::ostream& operator<<(std::ostream& stream, const Properties& properties);

/// The defaults of a level.
TORCHAMP_API Properties default_properties(OptLevel level);

/// The arguments of initialize: a level and its overrides. Setters chain:
/// `Options(OptLevel::O2).loss_scale(128.0).keep_batchnorm_fp32(false)`. A getter of the same name
/// returns the last value given, or the default; it is empty where the level decides.
class TORCHAMP_API Options {
 public:
  /// A level with its defaults.
  Options(OptLevel level = OptLevel::O1) : opt_level_(level) {}
  /// Takes the level's name. Throws RuntimeError as parse_opt_level().
  Options(const std::string& level) : opt_level_(parse_opt_level(level)) {}
  /// Takes the level's name.
  Options(std::string_view level) : Options(std::string(level)) {}
  /// Takes the level's name as a C string.
  Options(const char* level) : Options(std::string(detail::checked_text("opt_level", level))) {}

  /// Sets another level and keeps the overrides.
  Options& opt_level(OptLevel value) {
    opt_level_ = value;
    return *this;
  }
  /// Sets the level of that name.
  Options& opt_level(const std::string& value) { return opt_level(parse_opt_level(value)); }
  /// Sets the level of that name, a C string.
  Options& opt_level(const char* value) {
    return opt_level(std::string(detail::checked_text("opt_level", value)));
  }
  /// The dtype of parameters, buffers and inputs. Throws TypeError for a dtype that is not
  /// floating; resolve() rejects it at O1 and O4.
  Options& cast_model_type(c10::ScalarType dtype);
  /// Keeps the model's dtype at every level.
  Options& dont_cast_model() {
    cast_model_type_ = std::optional<c10::ScalarType>();
    return *this;
  }
  /// autocast(), by its name in apex.
  Options& patch_torch_functions(detail::Flag value) { return autocast(value); }
  /// keep_batchnorm_fp32(), as given on a command line. Throws ValueError for other than "True" and
  /// "False".
  Options& keep_batchnorm_fp32(const std::string& true_or_false);
  /// Takes a C string. Throws as for a std::string.
  Options& keep_batchnorm_fp32(const char* text) {
    return keep_batchnorm_fp32(std::string(detail::checked_text("keep_batchnorm_fp32", text)));
  }
  /// Names of modules, as in named_modules(), that stay in float32 with all that is in them, and of
  /// buffers, as in named_buffers(), at levels that cast the model. The program casts what it calls
  /// such modules with, and what they return: `net->head->forward(x.to(torch::kFloat))`. Where it
  /// does so in a disable_casts scope, they compute in float32 at O1 and O4 too, where all weights
  /// are float32. initialize throws ValueError for a name that no model has.
  Options& keep_fp32(std::vector<std::string> names) {
    keep_fp32_ = std::move(names);
    return *this;
  }
  /// One name.
  template <class Text, std::enable_if_t<std::is_convertible_v<const Text&, std::string>, int> = 0>
  Options& keep_fp32(const Text& name) {
    return keep_fp32(std::vector<std::string>{name});
  }
  /// At O4 and O5: the products of linears are in float8, of those whose weights are 1,024 by 1,024
  /// or more in multiples of 16, but for the last of a model and those that share an embedding's.
  /// Experimental. resolve() rejects it at other levels; initialize throws ValueError where no
  /// linear is so large, and RuntimeError for a device without float8.
  Options& float8() { return float8(true); }
  /// Whether they are.
  template <class OnOrOff>
  Options& float8(const OnOrOff& value) {
    float8_.reset();
    if (detail::Flag(value)) float8_.emplace();
    return *this;
  }
  /// Those in the modules of these names, as in named_modules(), at any size in multiples of 16.
  /// Throws ValueError for no names; initialize throws it for a name that no model has, and for a
  /// module without such linears.
  Options& float8(std::vector<std::string> names);
  /// "dynamic", or a fixed number. Throws ValueError unless it is positive and finite.
  Options& loss_scale(LossScale value);
  /// The dtype of forward's outputs, at every level; by default float32 if inputs are cast. Throws
  /// TypeError for a dtype that is not floating.
  Options& cast_model_outputs(c10::ScalarType dtype);
  /// How many losses have a scale of their own, by `ScaleLossOptions::loss_id`. Throws ValueError
  /// below 1.
  Options& num_losses(int64_t value) {
    num_losses_ = detail::at_least_one("num_losses", value);
    return *this;
  }
  /// The number of skipped steps in a row at which a step, or on CUDA a later call, throws
  /// RuntimeError with the reason. By default training goes on. Throws ValueError below 1.
  Options& max_consecutive_skips(int64_t value) {
    max_consecutive_skips_ = detail::at_least_one("max_consecutive_skips", value);
    return *this;
  }
  /// The ranks that have to skip the same steps though their grads differ: an overflow on one of
  /// them skips the step of all. By default ranks decide by themselves, which is enough where all
  /// have the same grads. Throws ValueError unless its rank is below its size.
  Options& process_group(Agreement ranks);

  /// @{
  /// The last value given to the setter of this name, or its default.
  OptLevel opt_level() const { return opt_level_; }
  /// Holds an empty one after dont_cast_model().
  std::optional<std::optional<c10::ScalarType>> cast_model_type() const { return cast_model_type_; }
  /// Empty names: all that are large.
  const std::optional<std::vector<std::string>>& float8() const { return float8_; }
  const std::optional<LossScale>& loss_scale() const { return loss_scale_; }
  const std::vector<std::string>& keep_fp32() const { return keep_fp32_; }
  std::optional<c10::ScalarType> cast_model_outputs() const { return cast_model_outputs_; }
  int64_t num_losses() const { return num_losses_; }
  std::optional<int64_t> max_consecutive_skips() const { return max_consecutive_skips_; }
  const Agreement& process_group() const { return process_group_; }
  /// @}

  /// The level's defaults with the overrides applied. Throws if an override contradicts the
  /// level.
  Properties resolve() const;

  /// false: initialize changes nothing, so that one program can train with and without it.
  TORCHAMP_SETTING(Options, detail::Flag, bool, enabled, true);
  /// Turns O1's and O4's autocast on or off.
  TORCHAMP_SETTING(Options, detail::Flag, std::optional<bool>, autocast, {});
  /// Whether batch norms stay in float32. Not for O1 and O4, where they always do.
  TORCHAMP_SETTING(Options, bool, std::optional<bool>, keep_batchnorm_fp32, {});
  /// Whether optimizers step float32 masters of 16-bit parameters. Not for O1 and O4.
  TORCHAMP_SETTING(Options, detail::Flag, std::optional<bool>, master_weights, {});
  /// A dynamic scale never goes below this, by default 2⁻¹⁰.
  TORCHAMP_SETTING(Options, double, std::optional<double>, min_loss_scale, {});
  /// A dynamic scale never goes above this, by default 2²⁴.
  TORCHAMP_SETTING(Options, double, double, max_loss_scale, 16777216.0);
  /// 0: nothing is logged; see logging.h.
  TORCHAMP_SETTING(Options, int, int, verbosity, 1);
  /// true: every step detects elements of the model that were written bypassing PyTorch's version
  /// counters, for example through `.data()` pointers, and copies them to the masters. Where the
  /// model was not written, such writes to masters are kept.
  TORCHAMP_SETTING(Options, detail::Flag, bool, adopt_data_writes, false);
  /// false: with torchamp's fused optimizers, where losses are scaled, the model's grads stay
  /// scaled until the step, which moves 30 bytes a parameter instead of 36. Clip with
  /// torchamp::clip_grad_norm_: LibTorch's own clips the scaled grads, which nothing notices.
  /// Optimizer::master_params() unscales them, at once and from then on.
  TORCHAMP_SETTING(Options, detail::Flag, bool, materialize_master_grads, true);

 private:
  OptLevel opt_level_;
  std::optional<std::optional<c10::ScalarType>> cast_model_type_;
  std::vector<std::string> keep_fp32_;
  std::optional<std::vector<std::string>> float8_;
  std::optional<LossScale> loss_scale_;
  std::optional<c10::ScalarType> cast_model_outputs_;
  int64_t num_losses_ = 1;
  std::optional<int64_t> max_consecutive_skips_;
  Agreement process_group_;
};

/// @}

}  // namespace torchamp
