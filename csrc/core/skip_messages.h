// What programs are told of skipped and underflowed steps.
#pragma once

#include <torchamp/detail/export.h>

#include <string>
#include <vector>

#include "core/late_report.h"

namespace torchamp {

/// The lines that report a skipped step. `names`: of the parameters in `step.first`, for whom it
/// knows them. Long runs of skipped steps are reported ever more rarely.
TORCHAMP_API std::vector<std::string> messages_of(const SkippedStep& step,
                                                  const std::vector<std::string>& names = {});

/// The line that reports a step by zeros, and what to do.
TORCHAMP_API std::string message_of(const UnderflowedStep& step);

/// Throws RuntimeError, which gives the reason, if `step` is the `max_in_a_row`-th in a row or a
/// later one.
TORCHAMP_API void check_in_a_row(const SkippedStep& step, int64_t max_in_a_row);

}  // namespace torchamp
