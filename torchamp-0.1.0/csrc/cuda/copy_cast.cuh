// copy_cast: destination = source, rounded to its dtype.
#pragma once

#include "cuda/arguments.h"
#include "cuda/walk.h"

namespace torchamp::cuda {

struct CopyCastElement {
  static constexpr int kReads = 1;
  static constexpr int kWrites = 1;
  static constexpr int kBatch = 2;
  bool found = false;

  TORCHAMP_DEVICE bool reads(int) const { return true; }

  TORCHAMP_DEVICE float operator()(float source) const { return source; }
};

template <class Launch>
TORCHAMP_DEVICE void copy_cast(const Launch& launch) {
  const uint32 unit = warp_unit(launch);
  if (unit >= launch.units) return;
  CopyCastElement element;
  walk(slice_of(launch, unit), element, warp_team());
}

}  // namespace torchamp::cuda
