#include <torchamp/optimizer.h>

#include "frontend/skip_messages.h"

namespace torchamp {

Telemetry telemetry(const Optimizer& optimizer) {
  const WrappedOptimizer& wrapped = optimizer.amp()->optimizers()[optimizer.index()];
  tell_skipped_steps(*optimizer.amp(), wrapped);
  return wrapped.state->late_report().known();
}

}  // namespace torchamp
