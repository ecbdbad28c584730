// unscale: master_grads = scaled_grads · inv_scale, fresh or added to what is there.
#pragma once

#include "cuda/arguments.h"
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

template <class Launch>
TORCHAMP_DEVICE void unscale(const Launch& launch) {
  const uint32 unit = warp_unit();
  if (unit >= launch.units) return;
  const UnscaleArguments& arguments = launch.arguments;
  const auto slice = slice_of(launch, unit);
  const float inv_scale = *arguments.inv_scale;
  if (arguments.accumulate) {
    walk_and_report(slice, AccumulateElement{inv_scale}, arguments.flags);
  } else {
    walk_and_report(slice, UnscaleElement{inv_scale}, arguments.flags);
  }
}

}  // namespace torchamp::cuda
