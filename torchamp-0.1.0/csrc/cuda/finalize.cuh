// finalize: the finalization of a backward, by one block.
#pragma once

#include "cuda/arguments.h"
#include "cuda/device.h"

namespace torchamp::cuda {

/// The flags of neighbouring positions.
struct alignas(16) PositionFlags {
  static constexpr int kPositions = 16;
  uint32 words[4];
};

TORCHAMP_DEVICE bool takes_words(const void* flags) {
  return reinterpret_cast<unsigned long long>(flags) % sizeof(PositionFlags) == 0;
}

/// Like finalize_position, for sixteen at a time: several loads are in flight before the first
/// store, which to the compiler may alias them.
TORCHAMP_DEVICE void finalize_words(const Finalization& end, int count) {
  constexpr int kBatch = 4;
  auto* const flags = reinterpret_cast<PositionFlags*>(end.flags.per_tensor);
  auto* const kept = reinterpret_cast<PositionFlags*>(end.per_tensor);
  const int stride = static_cast<int>(blockDim.x);
  TORCHAMP_ROLLED
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kBatch * stride) {
    PositionFlags found[kBatch] = {}, before[kBatch] = {};
    TORCHAMP_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      const int i = first + k * stride;
      if (i < count) found[k] = flags[i];
      if (i < count && end.adds_per_tensor) before[k] = kept[i];
    }
    TORCHAMP_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      const int i = first + k * stride;
      if (i >= count) continue;
      TORCHAMP_UNROLL
      for (int w = 0; w < 4; ++w) found[k].words[w] |= before[k].words[w];
      kept[i] = found[k];
      flags[i] = {};
    }
  }
}

TORCHAMP_DEVICE void finalize(const Finalization& end) {
  const bool by_words = takes_words(end.flags.per_tensor) && takes_words(end.per_tensor);
  const int words = by_words ? end.positions / PositionFlags::kPositions : 0;
  finalize_words(end, words);
  const int first = words * PositionFlags::kPositions + static_cast<int>(threadIdx.x);
  for (int i = first; i < end.positions; i += blockDim.x) finalize_position(end, i);
  __syncthreads();  // a report names positions of all threads
  if (threadIdx.x == 0) finalize_scalars(end);
}

}  // namespace torchamp::cuda
