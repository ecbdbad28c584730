// After stage 7: what the device did in each step.
#pragma once

#include <torchamp/detail/export.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace torchamp {
/// @addtogroup step
/// @{

class Optimizer;

/// An optimizer's steps, as far as the host knows. On CUDA the last ones may be missing.
struct Telemetry {
  int64_t steps = 0;                ///< since initialize, including skipped ones
  int64_t skipped_steps = 0;        ///< of those
  std::optional<bool> stepped;      ///< whether the last known step was taken, not skipped
  std::vector<double> loss_scales;  ///< one per loss, after that step
};

/// The reports that have arrived on the host since initialize. Does not wait for the device: a
/// backward's last pass writes outcome and scale to pinned memory. Steps captured into a graph are
/// counted where graphed() has captured them.
TORCHAMP_API Telemetry telemetry(const Optimizer& optimizer);

/// @}

}  // namespace torchamp
