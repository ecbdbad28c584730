// What the threads of a warp or a block have together, in a fixed order.
#pragma once

#include "cuda/device.h"

namespace torchamp::cuda {

/// The values of a warp's lanes, combined by twos, in its first lane.
template <class T, class Combine>
TORCHAMP_DEVICE T combined_in_warp(T value, const Combine& combine) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_down_sync(kFullWarp, value, distance));
  }
  return value;
}

/// The sum of a block of kBlock threads. All of them call it, once in a kernel.
template <int kBlock, class T>
TORCHAMP_DEVICE T block_sum(T value) {
  constexpr int kWarps = kBlock / kWarp;
  __shared__ T sums[kWarps];
  const T of_warp = combined_in_warp(value, [](T one, T other) { return one + other; });
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  T total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += sums[warp];
  return total;
}

}  // namespace torchamp::cuda
