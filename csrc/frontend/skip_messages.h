// Messages about skipped and underflowed steps.
#pragma once

#include <torchamp/amp_state.h>

#include <vector>

#include "core/late_report.h"

namespace torchamp {

/// Logs, unless verbosity is 0, the optimizer's steps that are by now known to be skipped,
/// and the first that underflowed. Returns those that were skipped.
std::vector<SkippedStep> report_skipped_steps(const Amp& amp, const WrappedOptimizer& optimizer);
/// The same. Throws RuntimeError after max_consecutive_skips of them in a row.
void check_skipped_steps(const Amp& amp, const WrappedOptimizer& optimizer);

}  // namespace torchamp
