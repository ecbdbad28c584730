// conclude: a backward's verdict, by one block.
#pragma once

#include "cuda/arguments.h"
#include "cuda/device.h"

namespace torchamp::cuda {

TORCHAMP_DEVICE void conclude(const Verdict& verdict) {
  for (int i = static_cast<int>(threadIdx.x); i < verdict.positions; i += kThreads) {
    conclude_position(verdict, i);
  }
  __syncthreads();  // a report names positions of all threads
  if (threadIdx.x == 0) conclude_scalars(verdict);
}

}  // namespace torchamp::cuda
