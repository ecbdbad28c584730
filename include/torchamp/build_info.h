#pragma once

#include <torchamp/export.h>

#include <string>
#include <vector>

namespace torchamp {

/// How this libtorchamp.so was built.
struct BuildInfo {
  std::string version;              ///< torchamp's version, "0.1.0"
  std::string torch_version;        ///< of the torch it was built for, "2.13.0+cpu"
  std::string compiler;             ///< "GNU 12.2.0"
  int cxx_standard;                 ///< 17 or 20
  std::vector<std::string> fatbin;  ///< CUDA architectures compiled by nvcc, "sm_90"; may be empty
  std::string nvcc;                 ///< nvcc's version, or "absent: " and the reason
};

TORCHAMP_API const BuildInfo& build_info();

}  // namespace torchamp
