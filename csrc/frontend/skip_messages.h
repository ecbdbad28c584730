// Messages about skipped steps.
#pragma once

#include <torchamp/amp_state.h>

#include "core/late_report.h"

namespace torchamp {

/// Reports on std::clog that a step is skipped.
void tell(const Overflow& overflow);
/// The same, unless quiet, for an optimizer's steps that are by now known to be skipped.
void tell_skipped_steps(const Amp& amp, const WrappedOptimizer& optimizer);

}  // namespace torchamp
