// Types shared by host and kernels.
#pragma once

#include "math/macros.h"

namespace torchamp {

enum class DType : uint8 { kFloat32, kFloat16, kBFloat16 };

/// In bytes.
TORCHAMP_MATH int size_of(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

/// Whether a flag, which may be null, is not 0.
TORCHAMP_MATH bool is_set(const float* flag) {
  return flag != nullptr && *flag != 0.0f;
}

/// Where an op reports what it finds in its tensors. All are only ever set to 1; the caller clears
/// them.
struct Flags {
  float* found_inf = nullptr;   ///< a value is not finite
  uint8* per_tensor = nullptr;  ///< the same, for each caller's position; may be null
};

}  // namespace torchamp
