// What host and kernels call the same.
#pragma once

#include "math/macros.h"

namespace torchamp {

enum class DType : uint8 {
  kFloat32,
  kFloat16,
  kBFloat16,
  kLowBits  ///< low_bits16: what a master is beyond its model parameter. Only fused_step takes
            ///< it
};

/// Where an op reports non-finite values: one float for the call, and optionally one byte per
/// caller's position. Both are only ever set to 1; clearing them is the caller's part.
struct Flags {
  float* found_inf = nullptr;
  uint8* per_tensor = nullptr;
};

}  // namespace torchamp
