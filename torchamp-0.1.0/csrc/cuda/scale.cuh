// scale: output = input · scale.
#pragma once

#include "cuda/arguments.h"
#include "cuda/walk.h"

namespace torchamp::cuda {

struct ScaleElement {
  static constexpr int kReads = 1;
  static constexpr int kWrites = 1;
  static constexpr int kBatch = 2;
  float scale;
  bool found = false;

  TORCHAMP_DEVICE bool reads(int) const { return true; }

  TORCHAMP_DEVICE float operator()(float input) {
    found |= is_nonfinite(input);
    return input * scale;
  }
};

template <class Launch>
TORCHAMP_DEVICE void scale(const Launch& launch) {
  const uint32 unit = warp_unit(launch);
  if (unit >= launch.units) return;
  walk_and_report(slice_of(launch, unit), ScaleElement{launch.arguments.scale},
                  launch.arguments.flags);
}

}  // namespace torchamp::cuda
