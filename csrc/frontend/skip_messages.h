// What is said of skipped steps.
#pragma once

#include <torchamp/amp_state.h>

#include "core/late_report.h"

namespace torchamp {

/// Says on std::clog that a step is skipped.
void tell(const Overflow& overflow);
/// The same, unless quiet, of an optimizer's steps that are known by now to have been skipped.
void tell_skipped_steps(const Amp& amp, const WrappedOptimizer& optimizer);

}  // namespace torchamp
