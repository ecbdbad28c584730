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
#include "inspect/rounding.h"

namespace torchamp {
namespace inspect {
namespace {

using Verdict = Preflight::Verdict;

/// The largest differences from float32 of a level that fits, relative.
constexpr double kMaxLossError = 0.02;
constexpr double kMaxGradError = 0.5;
/// Exponents of amp's loss scales: the first one, and the last that it backs off to.
const int kFirstScale = std::ilogb(LossScalerOptions().init_scale);
const int kLastScale = std::ilogb(ops::ScaleRule().min_scale);

/// The iteration in float32.
struct Reference {
  Outcome outcome;
  std::vector<std::string> written_buffers;  ///< of those that O2 and O5 cast
  std::optional<double> milliseconds;
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
  if (finder.origin()) {
    text << *finder.origin();
  } else {
    text << "not finite in the " << (outcome.has_finite_loss() ? "backward" : "forward");
  }
  if (outcome.has_finite_loss() && is_scaled(level)) {
    text << ", at every loss scale down to 2**" << kLastScale;
  }
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
Verdict trial(OptLevel level, torch::nn::Module& module, const Initialize& initialize,
              const Reference& reference) {
  int scale = is_scaled(level) ? kFirstScale : 0;
  while (true) {
    const Unchanged guard(module);
    const auto model = initialize(Options(level).verbosity(0));
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

/// A level that fits must not round what ops of the forward depend on.
void check_rounding(Verdict& verdict, Rounding& rounding) {
  const std::string reason = verdict.fits ? rounding.imprecision(verdict.level) : "";
  if (reason.empty()) return;
  verdict.fits = false;
  verdict.reason = reason;
  verdict.milliseconds.reset();
}

/// From the last to the first choice: bfloat16, which nothing overflows, comes first, except on
/// GPUs that have float16 alone.
std::vector<OptLevel> preferred(at::Device device) {
  const int capability = device.is_cuda() ? detail::compute_capability(device) : 0;
  if (0 < capability && capability < 80) {
    return {OptLevel::O5, OptLevel::O2, OptLevel::O4, OptLevel::O1};
  }
  return {OptLevel::O2, OptLevel::O5, OptLevel::O1, OptLevel::O4};
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
  reference.milliseconds = time_iteration(module, model, 1);
  return reference;
}

void add_notes(Preflight& found, const Reference& reference) {
  for (const auto& name : reference.written_buffers) {
    found.notes.push_back("The forward writes buffer '" + name +
                          "', which O2, O3 and O5 round: what it adds up there stops early. "
                          "Options::keep_fp32({\"" +
                          name + "\"}) keeps it in float32.");
  }
  if (!reference.is_model_called) {
    found.notes.emplace_back(
        "loss_of did not call the model that it was given. A net that it captures gets its inputs "
        "uncast: call the argument.");
  }
  if (!reference.outcome.note.empty()) found.notes.push_back(reference.outcome.note);
}

std::string digits(const std::optional<double>& milliseconds) {
  std::ostringstream text;
  if (milliseconds) text << std::setprecision(3) << *milliseconds;
  return text.str();
}

/// A sentence on the recommended level; "" if it was not timed.
std::string times(const Preflight& found) {
  const auto& taken = found.verdict(found.recommended).milliseconds;
  if (!taken || !found.milliseconds) return "";
  const std::string text = " An iteration takes " + digits(taken) + " ms, in float32 " +
                           digits(found.milliseconds) + " ms";
  if (*taken < *found.milliseconds) return text + '.';
  const Verdict* fastest = nullptr;
  for (const Verdict& each : found.verdicts) {
    const bool is_timed = each.fits && each.milliseconds;
    if (is_timed && (!fastest || each.milliseconds < fastest->milliseconds)) fastest = &each;
  }
  if (fastest->milliseconds < found.milliseconds) {
    return text + ", at " + name(fastest->level) + ' ' + digits(fastest->milliseconds) + " ms.";
  }
  return text + "; no level is faster here.";
}

}  // namespace
}  // namespace inspect

namespace detail {

Preflight preflight(torch::nn::Module& module, const inspect::Initialize& initialize) {
  inspect::check_model(module);
  Preflight found;
  const auto reference = inspect::run_in_float32(module, initialize);
  inspect::Rounding rounding(module, initialize);
  for (const auto level : {OptLevel::O1, OptLevel::O2, OptLevel::O3, OptLevel::O4, OptLevel::O5}) {
    found.verdicts.push_back(inspect::trial(level, module, initialize, reference));
    inspect::check_rounding(found.verdicts.back(), rounding);
  }
  found.milliseconds = reference.milliseconds;
  for (const auto level : inspect::preferred(module.parameters().front().device())) {
    if (found.verdict(level).fits) found.recommended = level;
  }
  inspect::add_notes(found, reference);
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
  if (found.recommended == OptLevel::O0) {
    stream << "\nNo level fits that keeps float32 weights: take O0, which is float32.";
  } else {
    stream << "\nRecommended: " << name(found.recommended) << '.';
    stream << inspect::times(found);
  }
  for (const auto& note : found.notes) stream << '\n' << note;
  return stream;
}

}  // namespace torchamp
