// The kernels that this process has loaded, device by device.
#pragma once

#include <array>
#include <atomic>

#include "backends/kernels.h"
#include "cuda/loader.h"

namespace torchamp::cuda {

struct Device {
  const Module module;
  /// Null until the kernel is first asked for.
  std::array<std::atomic<void*>, kKernels> functions{};

  explicit Device(Module module) : module(std::move(module)) {}
};

/// The queue's device, its backend chosen if need be. Throws std::runtime_error as backend() does.
Device& device_of(Queue queue);

/// The kernel's function on a device that does not use ATen, loaded if need be. Waits
/// for no other kernel once it is.
void* function_of(Device& device, Kernel kernel);

}  // namespace torchamp::cuda
