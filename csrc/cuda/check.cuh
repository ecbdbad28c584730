// check: reads, and reports non-finite values. The last block may end a backward.
#pragma once

#include "cuda/arguments.h"
#include "cuda/finalize.cuh"
#include "cuda/l2norm.cuh"
#include "cuda/last_block.h"
#include "cuda/walk.h"

namespace torchamp::cuda {

/// Checks the first list. Returns the thread's part of its sum of squares, whose cost the loads
/// hide.
template <int kLists>
TORCHAMP_DEVICE float check_slice(const Slice<kLists>& slice, const Flags& flags) {
  const Slice<1> first{
      {slice.address[0]}, {slice.dtype[0]}, slice.count, slice.position, slice.begin};
  return walk_and_report(first, L2normElement{}, flags).sum;
}

/// Called by all threads: stores the block's sum of squares; the last block then runs the
/// finalization.
TORCHAMP_DEVICE void end_pass(const Pass& pass, float squares) {
  const Finalization& end = pass.end;
  if (end.norm != nullptr) {
    const float sum = block_sum<kPassThreads>(squares);
    if (threadIdx.x == 0) pass.partials[pass.first_block + blockIdx.x] = sum;
  }
  if (end.ticket == nullptr || !is_last_block</*sees_writes=*/true>(end.ticket)) return;
  finalize(end);
  if (end.norm == nullptr) return;
  const float norm = norm_of<kPassThreads>(pass.partials, 0, int64{pass.first_block} + gridDim.x);
  if (threadIdx.x == 0) *end.norm = norm;
}

template <class Launch>
TORCHAMP_DEVICE void check(const Launch& launch) {
  const Pass& pass = launch.arguments.pass;
  const uint32 unit = warp_unit(launch);
  float squares = 0.0f;
  if (unit < launch.units) squares = check_slice(slice_of(launch, unit), pass.flags);
  end_pass(pass, squares);
}

}  // namespace torchamp::cuda
