// Types shared by host and kernels.
#pragma once

#include "math/macros.h"

namespace torchamp {

enum class DType : uint8 {
  kFloat32,
  kFloat16,
  kBFloat16,
  kLowBits  ///< low_bits16: the low bits of a master. Only fused_step accepts
            ///< it
};

/// In bytes.
TORCHAMP_MATH int size_of(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

/// Where an op reports non-finite values: one float for the call, and optionally one byte per
/// caller's position. Both are only ever set to 1; the caller clears them.
struct Flags {
  float* found_inf = nullptr;
  uint8* per_tensor = nullptr;
};

}  // namespace torchamp
