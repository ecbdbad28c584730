// unscale: master_grads = scaled_grads · inv_scale, fresh or added to what is there. Grads without
// a master grad are only checked, and their norm taken where it is wanted. The last block may end
// the backward.
#pragma once

#include "cuda/arguments.h"
#include "cuda/conclude.cuh"
#include "cuda/l2norm.cuh"
#include "cuda/last_block.h"
#include "cuda/walk.h"
#include "math/unscale.h"

namespace torchamp::cuda {

/// One for fresh master grads and for those that are added to, which alone are read.
struct UnscaleElement {
  static constexpr int kReads = 2;
  static constexpr int kWrites = 1;
  static constexpr int kBatch = 2;
  float inv_scale;
  bool accumulate;
  bool found = false;

  TORCHAMP_DEVICE bool reads(int list) const { return list == 0 || accumulate; }

  TORCHAMP_DEVICE float operator()(float scaled_grad, float master_grad) {
    found |= is_nonfinite(scaled_grad);
    return accumulate ? unscaled_onto(scaled_grad, inv_scale, master_grad)
                      : unscaled(scaled_grad, inv_scale);
  }
};

/// Checks a grad without a master grad; returns the thread's share of its sum of squares.
template <int kLists>
TORCHAMP_DEVICE float check_unit(const Slice<kLists>& slice, Flags flags) {
  L2normElement element;
  walk(slice, element, warp_team());
  report(element.found, flags, slice.position);
  return element.sum;
}

template <class Launch>
TORCHAMP_DEVICE float unscale_unit(const Launch& launch, uint32 unit) {
  const UnscaleArguments& arguments = launch.arguments;
  const auto slice = slice_of(launch, unit);
  if (slice.address[1] == nullptr) return check_unit(slice, arguments.flags);
  const UnscaleElement element{factor(arguments.inv_scale), arguments.accumulate};
  walk_and_report(slice, element, arguments.flags);
  return 0.0f;
}

template <class Launch>
TORCHAMP_DEVICE void unscale(const Launch& launch) {
  const UnscaleArguments& arguments = launch.arguments;
  const Ending& ending = arguments.ending;
  const uint32 unit = warp_unit(launch);
  const float squares = unit < launch.units ? unscale_unit(launch, unit) : 0.0f;
  if (ending.norm != nullptr) {
    const float sum = block_sum(squares);
    if (threadIdx.x == 0) arguments.partials[arguments.first_block + blockIdx.x] = sum;
  }
  if (ending.ticket == nullptr || !is_last_block</*sees_writes=*/true>(ending.ticket)) return;
  conclude(ending.verdict);
  if (ending.norm == nullptr) return;
  const float norm = norm_of(arguments.partials, 0, int64{arguments.first_block} + gridDim.x);
  if (threadIdx.x == 0) *ending.norm = norm;
}

}  // namespace torchamp::cuda
