#include "frontend/skip_messages.h"

#include <torchamp/logging.h>

#include "telemetry/skip_messages.h"

namespace torchamp {
namespace {

/// The names of the parameters in step.first.
std::vector<std::string> names_of(const Session& session, const WrappedOptimizer& optimizer,
                                  const SkippedStep& step) {
  std::vector<std::string> names;
  for (const int64_t i : step.first) {
    const std::string name = session.name_of(optimizer.state->params()[i]->model);
    names.push_back(name.empty() ? c10::str("parameter ", i) : name);
  }
  return names;
}

}  // namespace

std::vector<SkippedStep> report_skipped_steps(const Session& session,
                                              const WrappedOptimizer& optimizer) {
  std::vector<SkippedStep> skipped = optimizer.report->flush();
  if (session.options().verbosity() <= 0) return skipped;
  const auto in_float8 = [&session] {
    const auto& weights = session.casts().float8;
    return weights ? weights->nonfinite() : "";
  };
  for (const SkippedStep& step : skipped) {
    const auto names = names_of(session, optimizer, step);
    for (const LogMessage& message : messages_of(step, names, in_float8)) {
      log_message(message.level, message.text);
    }
  }
  return skipped;
}

void check_skipped_steps(const Session& session, const WrappedOptimizer& optimizer) {
  const auto max_in_a_row = session.options().max_consecutive_skips();
  for (const SkippedStep& step : report_skipped_steps(session, optimizer)) {
    if (max_in_a_row) check_in_a_row(step, *max_in_a_row);
  }
}

}  // namespace torchamp
