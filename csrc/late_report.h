// Flags and scales on their way from the device to the host.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <torchamp/loss_scaler.h>
#include <torchamp/telemetry.h>

#include <deque>

namespace torchamp {

/// Copies what the device decided behind each step, and counts it once it has arrived.
class LateReport {
 public:
  /// Takes what `skip` (undefined: 0) and the scales are now, after a step, and counts what has
  /// arrived, so that it does not pile up where nobody asks.
  void note(const at::Tensor& skip, const std::vector<LossScaler>& scalers);
  const Telemetry& known();

 private:
  struct Arriving {
    at::Tensor numbers;  ///< skip, then the scales
    std::optional<c10::Event> event;
  };

  void take(const at::Tensor& numbers);

  std::deque<Arriving> arriving_;
  Telemetry known_;
};

}  // namespace torchamp
