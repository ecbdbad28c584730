#include <torchamp/amp_state.h>
#include <torchamp/optimizer.h>

#include "late_report.h"

namespace torchamp {

Telemetry telemetry(const Optimizer& optimizer) {
  const OptimizerState& state = optimizer.amp()->optimizers()[optimizer.index()];
  tell_skipped_steps(*optimizer.amp(), state);
  return state.late_report->known();
}

}  // namespace torchamp
