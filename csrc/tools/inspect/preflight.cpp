#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torchamp/build_info.h>
#include <torchamp/preflight.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>
#include <sstream>

#include "inspect/iteration.h"
#include "inspect/linears.h"
#include "inspect/rounding.h"

namespace torchamp {
namespace inspect {
namespace {

using Verdict = Preflight::Verdict;

/// The largest differences from float32 of a level that fits, relative.
constexpr double kMaxLossError = 0.02;
constexpr double kMaxGradError = 0.5;
/// A level is faster than float32 from this share of its time down; the rest is noise.
constexpr double kLess = 0.9;
/// Float8 pays from this share of O5's time down.
constexpr double kPays = 0.95;
/// Exponents of amp's loss scales: the first one, and the last that it backs off to.
const int kFirstScale = std::ilogb(LossScalerOptions().init_scale);
const int kLastScale = std::ilogb(ops::ScaleRule().min_scale);

/// The iteration in float32.
struct Reference {
  Outcome outcome;
  std::vector<std::string> written_buffers;  ///< of those that O2 and O5 cast
  bool is_model_called = false;
};

/// Whether it trains in float16, with a loss scale.
bool is_scaled(OptLevel level) {
  return level != OptLevel::O4 && level != OptLevel::O5;
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& thrown) {
    return thrown.what_without_backtrace();
  } catch (const std::exception& thrown) {
    return thrown.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

std::string digits(const std::optional<double>& milliseconds) {
  std::ostringstream text;
  if (milliseconds) text << std::setprecision(3) << *milliseconds;
  return text.str();
}

// Judging a level.

double norm_of(const Outcome& outcome) {
  double squares = 0;
  for (const auto& named : outcome.grads) {
    squares += std::pow(named.second.to(at::kDouble).norm().item<double>(), 2);
  }
  return std::sqrt(squares);
}

double grad_error(const Outcome& outcome, const Outcome& expected) {
  Outcome difference;
  for (const auto& [name, grad] : expected.grads) {
    const auto found = outcome.grads.find(name);
    difference.grads[name] = found == outcome.grads.end() ? grad : grad - found->second;
  }
  const double off = norm_of(difference);
  return off == 0 ? 0 : off / std::max(norm_of(expected), 1e-300);
}

/// The parameters that have grads in float32 and nothing but zeros, or none, in `outcome`.
std::vector<std::string> lost_grads(const Outcome& outcome, const Outcome& expected) {
  std::vector<std::string> names;
  for (const auto& [name, grad] : expected.grads) {
    const auto found = outcome.grads.find(name);
    const bool is_lost = found == outcome.grads.end() || !found->second.any().template item<bool>();
    if (is_lost && grad.any().item<bool>()) names.push_back(name);
  }
  return names;
}

std::string overflow_text(OptLevel level, const Outcome& outcome, const FailureFinder& finder) {
  std::ostringstream text;
  const auto origin = finder.origin();
  if (origin) {
    print_op(text, *origin);
  } else {
    text << "not finite in the " << (outcome.has_finite_loss() ? "backward" : "forward");
  }
  if (outcome.has_finite_loss() && is_scaled(level)) {
    text << ", at every loss scale down to 2**" << kLastScale;
  }
  if (origin) text << remedy(*origin);
  return text.str();
}

/// Why a finite iteration does not fit; "" if it does.
std::string imprecision(const Verdict& verdict, const std::vector<std::string>& lost) {
  std::ostringstream text;
  text << std::setprecision(2);
  if (*verdict.loss_error > kMaxLossError) {
    text << "precision: the loss is " << *verdict.loss_error << " off float32";
  } else if (!lost.empty()) {
    text << "underflow: all grads of '" << lost.front() << "' are rounded to 0";
    if (lost.size() > 1) text << ", and " << lost.size() - 1 << " others";
  } else if (*verdict.grad_error > kMaxGradError) {
    text << "precision: grads are " << *verdict.grad_error << " of their norm off float32";
  }
  return text.str();
}

std::string closeness(const Verdict& verdict) {
  std::ostringstream text;
  text << std::setprecision(1) << "relative error: loss " << *verdict.loss_error << ", grads "
       << *verdict.grad_error;
  if (verdict.level == OptLevel::O3) text << "; without masters small updates are lost";
  return text.str();
}

Verdict judge(OptLevel level, const Outcome& outcome, const FailureFinder& finder, int scale,
              const Reference& reference) {
  Verdict verdict{level, false, "", {}, {}, {}, {}};
  if (outcome.error) {
    const std::string where = finder.raised().empty() ? "the iteration" : finder.raised();
    verdict.reason = where + " throws: " + first_line(message_of(outcome.error));
    return verdict;
  }
  if (!outcome.is_finite()) {
    verdict.reason = overflow_text(level, outcome, finder);
    return verdict;
  }
  const Outcome& expected = reference.outcome;
  verdict.loss_error =
      std::abs(outcome.loss - expected.loss) / std::max(std::abs(expected.loss), 1e-6);
  verdict.grad_error = grad_error(outcome, expected);
  if (is_scaled(level)) verdict.loss_scale = std::ldexp(1, scale);
  verdict.reason = imprecision(verdict, lost_grads(outcome, expected));
  verdict.fits = verdict.reason.empty();
  if (verdict.fits) verdict.reason = closeness(verdict);
  return verdict;
}

/// Judges a level by one iteration, or by some with ever smaller loss scales.
Verdict trial(const Options& options, torch::nn::Module& module, const Initialize& initialize,
              const Reference& reference) {
  const OptLevel level = options.opt_level();
  int scale = is_scaled(level) ? kFirstScale : 0;
  while (true) {
    const Unchanged guard(module);
    const auto model = initialize(Options(options).verbosity(0));
    const auto finder = std::make_shared<FailureFinder>();
    const Outcome outcome = run_iteration(module, model, std::ldexp(1, scale), finder);
    Verdict verdict = judge(level, outcome, *finder, scale, reference);
    if (verdict.fits) verdict.milliseconds = time_iteration(module, model, std::ldexp(1, scale));
    model.amp->close();
    const bool retries = is_scaled(level) && !outcome.error && outcome.has_finite_loss();
    if (outcome.is_finite() || !retries || scale <= kLastScale) return verdict;
    scale = std::max(scale - 2, kLastScale);
  }
}

/// Why a level that casts the model rounds what it must not; "" if it does not.
std::string rounded(OptLevel level, Rounding& rounding, const Reference& reference) {
  const std::string reason = rounding.imprecision(level);
  const bool casts_buffers = default_properties(level).cast_model_type.has_value();
  if (!reason.empty() || !casts_buffers || reference.written_buffers.empty()) return reason;
  const std::string& name = reference.written_buffers.front();
  return "precision: buffer '" + name + "' in 16 bits: what the forward adds up there stops " +
         "early; Options::keep_fp32({\"" + name + "\"}) avoids it";
}

void check_rounding(Verdict& verdict, Rounding& rounding, const Reference& reference) {
  const std::string reason = verdict.fits ? rounded(verdict.level, rounding, reference) : "";
  if (reason.empty()) return;
  verdict.fits = false;
  verdict.reason = reason;
  verdict.milliseconds.reset();
}

/// On linears in float8, where O5 fits, whose verdict is the last, and some are large enough.
void add_note_on_float8(Preflight& found, torch::nn::Module& module, const Initialize& initialize,
                        const Reference& reference) {
  const Verdict& plain = found.verdicts.back();
  if (!plain.fits) return;
  std::ostringstream note;
  try {
    const Verdict own = trial(Options(OptLevel::O5).float8(), module, initialize, reference);
    note << "float8() at O5 " << (own.fits ? "fits" : "does not fit") << ": " << own.reason << '.';
    if (own.milliseconds && plain.milliseconds) {
      const bool pays = *own.milliseconds <= kPays * *plain.milliseconds;
      note << " An iteration takes " << digits(own.milliseconds) << " ms, without it "
           << digits(plain.milliseconds)
           << " ms: " << (pays ? "recommended." : "it does not pay here.")
           << losing_linears(module, initialize);
    }
  } catch (const c10::ValueError&) {
    return;
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    note << "float8(): " << text.substr(text.find(": ") + 2);
  }
  found.notes.push_back(note.str());
}

/// From the first to the last choice: bfloat16, which nothing overflows, comes first, except on
/// GPUs that have float16 alone.
std::vector<OptLevel> preferred(at::Device device) {
  const int capability = device.is_cuda() ? detail::compute_capability(device) : 0;
  if (0 < capability && capability < 80) {
    return {OptLevel::O1, OptLevel::O4, OptLevel::O2, OptLevel::O5};
  }
  return {OptLevel::O4, OptLevel::O1, OptLevel::O5, OptLevel::O2};
}

/// The first choice of the levels that fit and are faster than float32, or were not timed.
OptLevel recommended(const Preflight& found, at::Device device) {
  for (const auto level : preferred(device)) {
    const Verdict& verdict = found.verdict(level);
    const bool is_timed = verdict.milliseconds && found.milliseconds;
    const bool is_fast = !is_timed || *verdict.milliseconds < kLess * *found.milliseconds;
    if (verdict.fits && is_fast) return level;
  }
  return OptLevel::O0;
}

// The iteration in float32.

void check_model(const torch::nn::Module& module) {
  const auto params = module.named_parameters();
  bool is_trained = false;
  for (const auto& param : params) {
    const at::Tensor& tensor = param.value();
    TORCH_CHECK_VALUE(!tensor.is_floating_point() || tensor.scalar_type() == at::kFloat ||
                          tensor.scalar_type() == at::kDouble,
                      "preflight: expected float32 parameters, got '", param.key(), "' in ",
                      tensor.scalar_type(), "; call it before initialize");
    is_trained = is_trained || tensor.requires_grad();
  }
  TORCH_CHECK_VALUE(is_trained,
                    "preflight: expected a model with a parameter that requires grad, got none");
  const auto device = params.front().value().device().type();
  TORCH_CHECK(!at::autocast::is_autocast_enabled(device),
              "preflight: expected no casts in this thread, got those of an autocast scope or of "
              "an initialize at O1 or O4; call it before them");
}

void check_is_finite(const Outcome& outcome, const FailureFinder& finder) {
  if (outcome.error) std::rethrow_exception(outcome.error);
  TORCH_CHECK_VALUE(
      outcome.is_finite(), "preflight: expected a finite iteration in float32, got ",
      outcome.has_finite_loss() ? "grads that are not" : "a loss of " + c10::str(outcome.loss),
      finder.origin() ? c10::str("; ", *finder.origin()) : "");
}

Reference run_in_float32(torch::nn::Module& module, const Initialize& initialize) {
  const Unchanged guard(module);
  const at::NoTF32Guard no_tf32;
  const auto model = initialize(Options(OptLevel::O0).verbosity(0));
  const auto finder = std::make_shared<FailureFinder>();
  Reference reference;
  reference.outcome = run_iteration(module, model, 1, finder);
  check_is_finite(reference.outcome, *finder);
  reference.is_model_called = detail::is_called(*model.amp);
  for (const auto& [name, buffer] : buffers_to_cast(module, at::kBFloat16, true)) {
    if (guard.is_written(buffer)) reference.written_buffers.push_back(name);
  }
  return reference;
}

std::optional<double> time_in_float32(torch::nn::Module& module, const Initialize& initialize) {
  const Unchanged guard(module);
  const at::NoTF32Guard no_tf32;
  return time_iteration(module, initialize(Options(OptLevel::O0).verbosity(0)), 1);
}

void add_notes(Preflight& found, const Reference& reference) {
  if (!reference.is_model_called) {
    found.notes.emplace_back(
        "loss_of did not call the model that it was given. A net that it captures gets its inputs "
        "uncast: call the argument.");
  }
  if (!reference.outcome.note.empty()) found.notes.push_back(reference.outcome.note);
}

/// Whether it fits and keeps float32 weights.
bool is_choice(const Verdict& verdict) {
  return verdict.fits && verdict.level != OptLevel::O3;
}

/// The sentence on the times of the recommended level, or of the fastest, and of float32; ""
/// without them.
std::string times(const Preflight& found) {
  const Verdict* told = nullptr;
  for (const Verdict& each : found.verdicts) {
    const bool is_told = found.recommended == OptLevel::O0 || each.level == found.recommended;
    if (!is_choice(each) || !is_told || !each.milliseconds) continue;
    if (told == nullptr || each.milliseconds < told->milliseconds) told = &each;
  }
  if (told == nullptr || !found.milliseconds) return "";
  return " An iteration takes " + digits(told->milliseconds) + " ms at " + name(told->level) +
         ", in float32 " + digits(found.milliseconds) + " ms.";
}

std::string advice(const Preflight& found) {
  if (found.recommended != OptLevel::O0) {
    return std::string("Recommended: ") + name(found.recommended) + '.';
  }
  const auto& verdicts = found.verdicts;
  if (!std::any_of(verdicts.begin(), verdicts.end(), is_choice)) {
    return "No level fits that keeps float32 weights: take O0, which is float32.";
  }
  return "No level is faster here by more than 10 %: take O0, which is float32.";
}

}  // namespace
}  // namespace inspect

namespace detail {

Preflight preflight(torch::nn::Module& module, const inspect::Initialize& initialize) {
  inspect::check_model(module);
  Preflight found;
  const auto reference = inspect::run_in_float32(module, initialize);
  found.milliseconds = inspect::time_in_float32(module, initialize);
  inspect::Rounding rounding(module, initialize);
  for (const auto level : {OptLevel::O1, OptLevel::O2, OptLevel::O3, OptLevel::O4, OptLevel::O5}) {
    found.verdicts.push_back(inspect::trial(level, module, initialize, reference));
    inspect::check_rounding(found.verdicts.back(), rounding, reference);
  }
  if (found.milliseconds) {  // again: the machine may have had other work at first
    const auto again = inspect::time_in_float32(module, initialize);
    found.milliseconds = std::min(*found.milliseconds, again.value_or(*found.milliseconds));
  }
  found.recommended = inspect::recommended(found, module.parameters().front().device());
  inspect::add_notes(found, reference);
  inspect::add_note_on_float8(found, module, initialize, reference);
  return found;
}

}  // namespace detail

const Preflight::Verdict& Preflight::verdict(OptLevel level) const {
  for (const auto& each : verdicts) {
    if (each.level == level) return each;
  }
  C10_THROW_ERROR(ValueError,
                  c10::str("Preflight: expected a level of O1 to O5, got ", name(level)));
}

std::ostream& operator<<(std::ostream& stream, const Preflight& found) {
  using inspect::digits;
  stream << "level  fits  ms      loss scale  why\n";
  for (const auto& verdict : found.verdicts) {
    const std::string scale =
        verdict.loss_scale ? "2**" + std::to_string(std::ilogb(*verdict.loss_scale)) : "";
    std::string row = std::string(name(verdict.level)) + "     " + (verdict.fits ? "yes" : "no");
    row.resize(13, ' ');
    row += digits(verdict.milliseconds);
    row.resize(21, ' ');
    row += scale;
    row.resize(33, ' ');
    stream << row << verdict.reason << '\n';
  }
  stream << '\n' << inspect::advice(found) << inspect::times(found);
  for (const auto& note : found.notes) stream << '\n' << note;
  return stream;
}

}  // namespace torchamp
