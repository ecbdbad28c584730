// What a grid's last block does alone, after all others: the ticket of CUDA's own sample
// threadFenceReduction.
#pragma once

#include "cuda/device.h"

namespace torchamp::cuda {

/// Whether all other blocks of the grid have come here before; what they wrote until then, this one
/// sees. All threads of every block call it, once. *ticket is 0 before the grid starts, and again
/// when it has ended.
TORCHAMP_DEVICE bool is_last_block(uint32* ticket) {
  TORCHAMP_SHARED(uint32, drawn, 1);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) drawn[0] = atomicAdd(ticket, 1u);
  __syncthreads();
  if (drawn[0] + 1 != gridDim.x) return false;
  __threadfence();
  if (threadIdx.x == 0) *ticket = 0;
  return true;
}

}  // namespace torchamp::cuda
