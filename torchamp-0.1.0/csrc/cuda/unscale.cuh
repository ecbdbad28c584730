// unscale: master_grads = scaled_grads · inv_scale, overwritten or accumulated. Grads without
// a master grad are only checked, and their norm computed on request. The last block may end
// the backward.
#pragma once

#include "cuda/check.cuh"
#include "math/unscale.h"

namespace torchamp::cuda {

/// For fresh master grads and for those that accumulate; only the latter are read.
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

template <class Launch>
TORCHAMP_DEVICE float unscale_unit(const Launch& launch, uint32 unit) {
  const UnscaleArguments& arguments = launch.arguments;
  const Flags& flags = arguments.pass.flags;
  const auto slice = slice_of(launch, unit);
  if (slice.address[1] == nullptr) return check_slice(slice, flags);
  walk_and_report(slice, UnscaleElement{factor(arguments.inv_scale), arguments.accumulate}, flags);
  return 0.0f;
}

template <class Launch>
TORCHAMP_DEVICE void unscale(const Launch& launch) {
  const uint32 unit = warp_unit(launch);
  const float squares = unit < launch.units ? unscale_unit(launch, unit) : 0.0f;
  end_pass(launch.arguments.pass, squares);
}

}  // namespace torchamp::cuda
