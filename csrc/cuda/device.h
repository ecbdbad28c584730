// What the kernels share.
#pragma once

#include "cuda/block.h"
#include "math/float16.h"
#include "math/types.h"

#define TORCHAMP_DEVICE __device__ __forceinline__

#define TORCHAMP_UNROLL _Pragma("unroll")
#define TORCHAMP_ROLLED _Pragma("unroll 1")

namespace torchamp::cuda {

constexpr uint32 kFullWarp = 0xffffffffu;

/// Sets *flag to 1. Threads that race here all write the same.
template <class T>
TORCHAMP_DEVICE void raise(T* flag) {
  *flag = 1;
}

/// Called by whole warps: reports a non-finite value that any lane found in the tensor at
/// `position`.
TORCHAMP_DEVICE void report(bool found, const Flags& flags, int32 position) {
  const bool any = __any_sync(kFullWarp, found);
  if (!any || threadIdx.x % kWarp != 0) return;
  if (flags.found_inf != nullptr) raise(flags.found_inf);
  if (flags.per_tensor != nullptr) raise(flags.per_tensor + position);
}

}  // namespace torchamp::cuda
