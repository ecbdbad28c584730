// The kernels of each CUDA device: which backend each uses, and why, and what this process has
// loaded of them.
#pragma once

#include <array>
#include <atomic>
#include <string>

#include "backends/kernels.h"
#include "cuda/loader.h"

namespace torchamp::cuda {

/// Whether TORCHAMP_KERNELS=aten turns all kernels off, the CPU's too. Throws std::runtime_error if
/// the variable has an invalid value.
bool forced_aten();

/// The backend of the device's kernels, chosen at the first call. Each kernel is loaded, and with
/// NVRTC compiled, when it is first launched: from any thread, also during a graph's capture.
/// Throws std::runtime_error in a process forked after the first call, and when the backend that
/// TORCHAMP_KERNELS requests is unavailable; without a request the device falls back to ATen.
/// Throws OutOfMemory, and chooses at the next call, where the device's memory is full.
Backend backend(int device);

/// Why the device does not use a better backend: one line per backend tried. Empty for the
/// highest.
std::string backend_reason(int device);

/// The device's compute capability as 10 · major + minor; 0 where TORCHAMP_KERNELS=aten, or torch
/// or the driver has no such device.
int compute_capability(int device);

struct Device {
  const Module module;
  /// Null until the kernel is first asked for.
  std::array<std::atomic<void*>, kFunctionCount * kTables> functions{};

  explicit Device(Module module) : module(std::move(module)) {}
};

/// The queue's device, its backend chosen if need be. Throws std::runtime_error as backend() does.
Device& device_of(Queue queue);

/// The kernel's function on a device that does not use ATen, loaded if need be. Waits
/// for no other kernel once it is.
void* function_of(Device& device, Kernel kernel);

}  // namespace torchamp::cuda
