#include "frontend/session.h"
#include "frontend/skip_messages.h"

namespace torchamp {

Telemetry telemetry(const Optimizer& optimizer) {
  const WrappedOptimizer& wrapped = wrapped_of(optimizer);
  report_skipped_steps(optimizer.amp()->session(), wrapped);
  return wrapped.report->known();
}

}  // namespace torchamp
