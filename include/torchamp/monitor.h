// The loss scale and the grads of each step, for CSV files and a program's own logger.
#pragma once

#include <torchamp/detail/export.h>
#include <torchamp/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace torchamp {
/// @addtogroup step
/// @{

/// The values of a step that a Monitor reports.
struct StepValues {
  int64_t step = 0;            ///< counted from 0 since the monitor was made
  double loss_scale = 0;       ///< of the first loss, when the step began
  double grad_norm = 0;        ///< the L2 norm of all grads, unscaled; inf or NaN after an overflow
  double zero_grads = 0;       ///< the share of elements of grads that are 0
  double subnormal_grads = 0;  ///< of those that float16 cuts when scaled: below 2⁻¹⁴, not 0
  int64_t steps = 0;           ///< since the first call of telemetry(), as the host knows by then;
                               ///< the monitor makes it if the program has not
  int64_t skipped_steps = 0;   ///< of those
};

/// Observes the steps of an optimizer that initialize returned, until it is destroyed. Nothing
/// waits for the device: values are written when they have arrived, at a later step or in close().
/// Steps that are captured into a graph are not observed.
///
///     amp::Monitor monitor(optimizer, "steps.csv");
///     amp::Monitor monitor(optimizer, [&](const amp::StepValues& values) { … }, 10);
class TORCHAMP_API Monitor {
 public:
  /// Takes the values of a step. What it throws reaches the caller of step() or close().
  using Write = std::function<void(const StepValues& values)>;

  /// `every`: how many steps from one that is observed to the next. Throws ValueError below 1.
  Monitor(const Optimizer& optimizer, Write write, int64_t every = 1);
  /// Writes a line of a CSV file a step. Throws RuntimeError if it cannot be written.
  Monitor(const Optimizer& optimizer, const std::string& path, int64_t every = 1);
  /// Calls close(), and drops what that throws.
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  /// Waits for the device, writes the rest, and observes no longer.
  void close();

 private:
  struct Observer;
  std::shared_ptr<Observer> observer_;
};

/// @}

}  // namespace torchamp
