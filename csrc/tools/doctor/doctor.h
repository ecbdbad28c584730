// Examines what torchamp finds on a machine. The program torchamp-doctor prints the result, and so
// does `python -m torchamp`, with Python's part.
#pragma once

#include <torchamp/detail/export.h>

#include <string>
#include <vector>

namespace torchamp {
/// @addtogroup build
/// @{

/// One line of a report.
struct Diagnostic {
  std::string subject;      ///< what was checked
  std::string found;        ///< what was found
  int status = 0;           ///< 0: fine, 1: works but could work better, 2: broken
  std::string remedy = {};  ///< how to fix it; may be empty
};

/// Checks torch, its ABI, the processor, the CUDA driver, NVRTC, cuBLAS, and of every device the
/// kernels, which it loads, and whether torch has float8 products for it.
TORCHAMP_API std::vector<Diagnostic> examine();

/// @}

}  // namespace torchamp
