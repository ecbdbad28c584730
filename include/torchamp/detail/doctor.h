// What torchamp finds on a machine. The program torchamp-doctor prints it, as `python -m torchamp`
// does with Python's part besides.
#pragma once

#include <torchamp/detail/export.h>

#include <string>
#include <vector>

namespace torchamp {
/// @addtogroup build
/// @{

/// One line of a report.
struct Finding {
  std::string subject;      ///< what was looked at
  std::string found;        ///< what is there
  int status = 0;           ///< 0: fine, 1: works less well than it could, 2: broken
  std::string remedy = {};  ///< what to do about it; may be empty
};

/// Looks at torch, its ABI, the processor, the CUDA driver, NVRTC and the kernels of every device,
/// which it loads.
TORCHAMP_API std::vector<Finding> examine();

/// @}

}  // namespace torchamp
