// check: reads, and reports non-finite values.
#pragma once

#include "cuda/arguments.h"
#include "cuda/walk.h"

namespace torchamp::cuda {

struct CheckElement {
  static constexpr int kReads = 1;
  static constexpr int kWrites = -1;
  static constexpr int kBatch = 4;
  bool found = false;

  TORCHAMP_DEVICE bool reads(int) const { return true; }

  TORCHAMP_DEVICE float operator()(float value) {
    found |= is_nonfinite(value);
    return value;
  }
};

template <class Launch>
TORCHAMP_DEVICE void check(const Launch& launch) {
  const uint32 unit = warp_unit(launch);
  if (unit >= launch.units) return;
  walk_and_report(slice_of(launch, unit), CheckElement{}, launch.arguments.flags);
}

}  // namespace torchamp::cuda
