// Chooses one device's backend: fatbin, else NVRTC, else ATen.
#pragma once

#include <memory>
#include <string>

#include "cuda/driver.h"
#include "cuda/kernel.h"

namespace torchamp::cuda {

enum class Backend { kFatbin, kNvrtc, kAten };

/// "fatbin", "nvrtc" or "aten".
const char* name(Backend backend);

/// The values of TORCHAMP_KERNELS.
enum class Choice { kAuto, kAot, kNvrtc, kAten };

/// Null or empty means auto. Throws std::runtime_error that names the variable and its values for
/// anything else.
Choice parse_choice(const char* value);

/// parse_choice of the environment at the first call.
Choice choice();

/// One device's kernels, none of which is loaded yet.
struct Module {
  Backend backend = Backend::kAten;
  std::string reason;
  std::unique_ptr<const PrimaryContext> context;  ///< null with Backend::kAten
  int capability = 0;      ///< 10 · major + minor; 0 where the driver has no such device
  void* fatbin = nullptr;  ///< all kernels, with that backend
};

/// The device's compute capability as 10 · major + minor. Throws std::runtime_error where the
/// driver has no such device.
int capability_of(const Driver& driver, int ordinal);

/// Chooses the device's backend. Throws OutOfMemory where its memory is full, and
/// std::runtime_error if a backend other than ATen is requested and unavailable.
Module load_module(const Driver& driver, int device, Choice choice);

/// The function of one of the module's kernels, which with NVRTC is compiled for it. Throws
/// std::runtime_error if it is unavailable. Not to be called by two threads at once.
void* load_kernel(const Driver& driver, const Module& module, Kernel kernel);

/// A module without kernels.
Module aten_module(const std::string& reason);

}  // namespace torchamp::cuda
