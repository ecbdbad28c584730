// After stage 7: what became of the steps that the device decides about.
#pragma once

#include <torchamp/detail/export.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace torchamp {
/// @addtogroup step
/// @{

class Optimizer;

/// What the host knows of an optimizer's steps. On CUDA the last ones may be missing.
struct Telemetry {
  int64_t steps = 0;          ///< since the first call of telemetry(), with those that were skipped
  int64_t skipped_steps = 0;  ///< of those
  std::optional<bool> stepped;      ///< whether the last one known was a step, and not skipped
  std::vector<double> loss_scales;  ///< one a loss, as they were after that step
};

/// What has arrived on the host since the first call, which begins the counting. Waits for nothing:
/// a backward's last pass writes flag and scale to pinned memory. Steps that are captured into a
/// graph are not seen.
TORCHAMP_API Telemetry telemetry(const Optimizer& optimizer);

/// @}

}  // namespace torchamp
