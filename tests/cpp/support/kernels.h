// Every kernel of the device.
#pragma once

#include <vector>

#include "cuda/kernel.h"

namespace torchamp::cuda {

inline std::vector<Kernel> all_kernels() {
  std::vector<Kernel> all;
  for (int i = 0; i < kFunctionCount; ++i) {
    for (int table = 0; table < (kFunctions[i].has_tables ? kTables : 1); ++table)
      all.push_back({static_cast<Function>(i), static_cast<TableAt>(table)});
  }
  return all;
}

}  // namespace torchamp::cuda
