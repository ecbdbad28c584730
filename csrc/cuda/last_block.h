// Detects a grid's last block, which works alone after all others: the ticket of CUDA's sample
// threadFenceReduction.
#pragma once

#include "cuda/device.h"

namespace torchamp::cuda {

/// Whether all other blocks of the grid have called this before. All threads of every block call
/// it, once. *ticket is 0 before the grid starts, and again when it has ended. sees_writes: the
/// last block sees what the others wrote until then, for which they have to wait for their writes.
template <bool sees_writes>
TORCHAMP_DEVICE bool is_last_block(uint32* ticket) {
  __shared__ uint32 drawn;
  __syncthreads();
  if (threadIdx.x == 0) {
    if (sees_writes) __threadfence();
    drawn = atomicAdd(ticket, 1u);
  }
  __syncthreads();
  if (drawn + 1 != gridDim.x) return false;
  if (sees_writes) __threadfence();
  if (threadIdx.x == 0) *ticket = 0;
  return true;
}

}  // namespace torchamp::cuda
