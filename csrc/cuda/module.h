// The kernels of each CUDA device: which backend each uses: fatbin, else NVRTC, else ATen,
// and why.
#pragma once

#include <string>

namespace torchamp::cuda {

enum class Backend { kFatbin, kNvrtc, kAten };

/// "fatbin", "nvrtc" or "aten".
const char* name(Backend backend);

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

}  // namespace torchamp::cuda
