// unscale: master_grads = scaled_grads · inv_scale, fresh or added to what is there. Grads without
// a master grad are only checked, and their norm taken where it is wanted. The last block may end
// the backward.
#pragma once

#include "cuda/arguments.h"
#include "cuda/check.cuh"
#include "cuda/conclude.cuh"
#include "cuda/l2norm.cuh"
#include "cuda/last_block.h"
#include "cuda/walk.h"
#include "math/unscale.h"

namespace torchamp::cuda {

struct UnscaleElement {
  static constexpr int kReads = 1;
  static constexpr int kWrites = 1;
  float inv_scale;
  bool found = false;

  TORCHAMP_DEVICE float operator()(float scaled_grad) {
    found |= is_nonfinite(scaled_grad);
    return unscaled(scaled_grad, inv_scale);
  }
};

struct AccumulateElement {
  static constexpr int kReads = 2;
  static constexpr int kWrites = 1;
  float inv_scale;
  bool found = false;

  TORCHAMP_DEVICE float operator()(float scaled_grad, float master_grad) {
    found |= is_nonfinite(scaled_grad);
    return unscaled_onto(scaled_grad, inv_scale, master_grad);
  }
};

template <int kLists>
TORCHAMP_DEVICE float sum_of_squares(const Slice<kLists>& slice, Flags flags) {
  L2normElement element;
  walk(slice, element, warp_team());
  report(element.found, flags, slice.position);
  return element.sum;
}

/// Returns the thread's share of the sum of squares that is wanted of the unit.
template <class Launch>
TORCHAMP_DEVICE float unscale_unit(const Launch& launch, uint32 unit) {
  const UnscaleArguments& arguments = launch.arguments;
  const Flags flags = arguments.flags;
  const auto slice = slice_of(launch, unit);
  const float inv_scale = factor(arguments.inv_scale);
  if (slice.address[1] == nullptr) {
    if (arguments.ending.norm != nullptr) return sum_of_squares(slice, flags);
    walk_and_report(slice, CheckElement{}, flags);
  } else if (arguments.accumulate) {
    walk_and_report(slice, AccumulateElement{inv_scale}, flags);
  } else {
    walk_and_report(slice, UnscaleElement{inv_scale}, flags);
  }
  return 0.0f;
}

template <class Launch>
TORCHAMP_DEVICE void unscale(const Launch& launch) {
  const UnscaleArguments& arguments = launch.arguments;
  const Ending& ending = arguments.ending;
  const uint32 unit = warp_unit();
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
