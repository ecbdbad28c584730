#include "frontend/skip_messages.h"

#include <iostream>

namespace torchamp {

void report_overflow(const Overflow& overflow) {
  std::clog << "torchamp: gradient overflow in loss " << overflow.loss_id
            << "; the step is skipped, the loss scale is now " << overflow.loss_scale << '\n';
}

void report_skipped_steps(const Amp& amp, const WrappedOptimizer& optimizer) {
  const std::vector<SkippedStep> skipped = optimizer.state->late_report().flush();
  if (amp.options().verbosity() <= 0) return;
  for (const SkippedStep& step : skipped) {
    for (const Overflow& overflow : step.overflows) report_overflow(overflow);
  }
}

}  // namespace torchamp
