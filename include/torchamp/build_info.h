#pragma once

#include <c10/core/Device.h>
#include <torchamp/detail/export.h>

#include <string>
#include <vector>

namespace torchamp {
/// @addtogroup build
/// @{

/// How this libtorchamp.so was built.
struct BuildInfo {
  std::string version;              ///< torchamp's version, "0.1.0"
  std::string torch_version;        ///< of the torch it was built for, "2.13.0+cpu"
  std::string compiler;             ///< "GNU 12.2.0"
  int cxx_standard;                 ///< 17 or 20
  std::vector<std::string> fatbin;  ///< CUDA architectures compiled by nvcc, "sm_90"; may be empty
  std::string nvcc;                 ///< nvcc's version, or "absent: " and the reason
};

/// The build of the library that this program runs with.
TORCHAMP_API const BuildInfo& build_info();

/// Which kernels the ops run on one device.
struct Backend {
  /// "avx2", "neon" or "portable" on the CPU, "fatbin" or "nvrtc" on CUDA, or "aten".
  std::string name;
  std::string reason;  ///< why the faster ones are not used, one per line; may be empty
};

/// Chooses a CUDA device's backend if it is not chosen yet; kernels are loaded when they are first
/// launched. Throws std::runtime_error where TORCHAMP_KERNELS requests kernels that are
/// unavailable, or the device's memory is full.
TORCHAMP_API Backend backend(c10::Device device);

/// The folder in which kernels compiled by NVRTC are cached for other processes: TORCHAMP_CACHE, or
/// torchamp in XDG_CACHE_HOME or ~/.cache. Empty where there is none, or TORCHAMP_CACHE is "off".
TORCHAMP_API std::string kernel_cache();

/// @}

namespace detail {

/// 10 · major + minor of a CUDA device; 0 where torchamp cannot ask the driver.
TORCHAMP_API int compute_capability(c10::Device device);

/// The least that multiplies in float8.
constexpr int kFloat8Capability = 89;

}  // namespace detail

}  // namespace torchamp
