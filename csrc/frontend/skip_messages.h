// Messages about skipped steps.
#pragma once

#include <vector>

#include "frontend/session.h"
#include "telemetry/late_report.h"

namespace torchamp {

/// Logs, unless verbosity is 0, the optimizer's steps that are by now known to be skipped. Returns
/// them.
std::vector<SkippedStep> report_skipped_steps(const Session& session,
                                              const WrappedOptimizer& optimizer);
/// Does so too, and throws RuntimeError after max_consecutive_skips skipped steps in a row.
void check_skipped_steps(const Session& session, const WrappedOptimizer& optimizer);

}  // namespace torchamp
