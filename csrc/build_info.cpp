#include <torchamp/build_info.h>

#include "build_config.h"

namespace torchamp {

const BuildInfo& build_info() {
  static const BuildInfo info{TORCHAMP_VERSION,      TORCHAMP_TORCH_VERSION, TORCHAMP_COMPILER,
                              TORCHAMP_CXX_STANDARD, TORCHAMP_FATBIN_ARCHS,  TORCHAMP_NVCC};
  return info;
}

}  // namespace torchamp
