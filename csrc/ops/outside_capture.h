#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>

#include <optional>

#include "cuda/driver.h"

namespace torchamp {

/// Whether torch's current stream on the device is being captured into a graph. Throws
/// std::runtime_error if the driver cannot report it.
bool is_capturing(at::Device device);

/// For tensors that are first used in a graph's capture, but must keep their values between
/// replays: while this lives, the thread's work on `device` goes to a stream that is not captured,
/// and is complete when it ends. Does nothing without a capture.
class OutsideCapture {
 public:
  explicit OutsideCapture(at::Device device);
  ~OutsideCapture() noexcept(false);
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

  /// A tensor that was made while this lives: its memory is not reused before the work on it is
  /// done, of the captured stream and of the default one, which may replay the graph.
  at::Tensor kept(at::Tensor made) const;

 private:
  std::optional<cuda::RelaxedCaptureScope> relaxed_;
  std::optional<c10::StreamGuard> other_stream_;
};

}  // namespace torchamp
