#include "frontend/skip_messages.h"
#include "frontend/wrapped.h"

namespace torchamp {

Telemetry telemetry(const Optimizer& optimizer) {
  const WrappedOptimizer& wrapped = wrapped_of(optimizer);
  report_skipped_steps(*optimizer.amp(), wrapped);
  return wrapped.report->known();
}

}  // namespace torchamp
