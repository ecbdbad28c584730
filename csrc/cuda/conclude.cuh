// conclude: a backward's verdict, by one block.
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

/// As conclude_position, for sixteen at a time: several loads are on their way before the first
/// store, which might be to their address for all that the compiler knows.
TORCHAMP_DEVICE void conclude_words(const Verdict& verdict, int count) {
  constexpr int kBatch = 4;
  auto* const raised = reinterpret_cast<PositionFlags*>(verdict.raised.per_tensor);
  auto* const kept = reinterpret_cast<PositionFlags*>(verdict.per_tensor);
  const int stride = static_cast<int>(blockDim.x);
  TORCHAMP_ROLLED
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kBatch * stride) {
    PositionFlags found[kBatch] = {}, before[kBatch] = {};
    TORCHAMP_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      const int i = first + k * stride;
      if (i < count) found[k] = raised[i];
      if (i < count && verdict.adds_per_tensor) before[k] = kept[i];
    }
    TORCHAMP_UNROLL
    for (int k = 0; k < kBatch; ++k) {
      const int i = first + k * stride;
      if (i >= count) continue;
      TORCHAMP_UNROLL
      for (int w = 0; w < 4; ++w) found[k].words[w] |= before[k].words[w];
      kept[i] = found[k];
      raised[i] = {};
    }
  }
}

TORCHAMP_DEVICE void conclude(const Verdict& verdict) {
  const bool by_words = takes_words(verdict.raised.per_tensor) && takes_words(verdict.per_tensor);
  const int words = by_words ? verdict.positions / PositionFlags::kPositions : 0;
  conclude_words(verdict, words);
  const int first = words * PositionFlags::kPositions + static_cast<int>(threadIdx.x);
  for (int i = first; i < verdict.positions; i += blockDim.x) conclude_position(verdict, i);
  __syncthreads();  // a report names positions of all threads
  if (threadIdx.x == 0) conclude_scalars(verdict);
}

}  // namespace torchamp::cuda
