// The messages about skipped steps.
#pragma once

#include <torchamp/detail/export.h>
#include <torchamp/logging.h>

#include <functional>
#include <string>
#include <vector>

#include "telemetry/late_report.h"

namespace torchamp {

struct LogMessage {
  LogLevel level;
  std::string text;
};

/// Whether its losses are finite, so that a lower loss scale may help.
TORCHAMP_API bool is_loss_finite(const SkippedStep& step);

/// The messages that report a skipped step. `names`: of the parameters in `step.first`, if known.
/// in_float8: gives the first tensor of a product that was not finite, which made all these grads
/// so; empty if all were. It may wait for the device, and is called where that is told alone.
/// Long runs of skipped steps are reported ever more rarely.
TORCHAMP_API std::vector<LogMessage> messages_of(
    const SkippedStep& step, const std::vector<std::string>& names = {},
    const std::function<std::string()>& in_float8 = {});

/// Throws RuntimeError, which gives the reason, if `step` is the `max_in_a_row`-th in a row or a
/// later one.
TORCHAMP_API void check_in_a_row(const SkippedStep& step, int64_t max_in_a_row);

}  // namespace torchamp
