#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>

#include <optional>

#include "cuda/driver.h"

namespace torchamp {

/// For tensors that a graph's capture comes upon first, but that must keep their values from replay
/// to replay: while this lives, the thread's work on `device` goes to a stream that is not
/// captured, and has been done when it ends. Without a capture under way it does nothing.
class OutsideCapture {
 public:
  explicit OutsideCapture(at::Device device);
  ~OutsideCapture() noexcept(false);
  OutsideCapture(const OutsideCapture&) = delete;
  OutsideCapture& operator=(const OutsideCapture&) = delete;

 private:
  std::optional<cuda::RelaxedCaptureScope> relaxed_;
  std::optional<c10::StreamGuard> other_stream_;
};

}  // namespace torchamp
