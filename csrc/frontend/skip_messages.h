// Messages about skipped steps.
#pragma once

#include <torchamp/amp_state.h>

#include "core/late_report.h"

namespace torchamp {

/// Reports on std::clog that a step is skipped.
void report_overflow(const Overflow& overflow);
/// The same, unless quiet, for an optimizer's steps that are by now known to be skipped.
void report_skipped_steps(const Amp& amp, const WrappedOptimizer& optimizer);

}  // namespace torchamp
