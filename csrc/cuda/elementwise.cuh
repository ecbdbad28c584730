// axpby and copy_cast: each output is a function of the inputs at its place.
#pragma once

#include "cuda/arguments.h"
#include "cuda/walk.h"
#include "math/axpby.h"

namespace torchamp::cuda {

struct AxpbyElement {
  static constexpr int kReads = 2;
  static constexpr int kWrites = 2;
  static constexpr int kBatch = 1;
  const AxpbyArguments& arguments;
  bool found = false;

  TORCHAMP_DEVICE bool reads(int) const { return true; }

  TORCHAMP_DEVICE float operator()(float x, float y) {
    found |= (arguments.check_x && is_nonfinite(x)) || (arguments.check_y && is_nonfinite(y));
    return torchamp::axpby(arguments.a, x, arguments.b, y);
  }
};

template <class Launch>
TORCHAMP_DEVICE void axpby(const Launch& launch) {
  const uint32 unit = warp_unit(launch);
  if (unit >= launch.units) return;
  walk_and_report(slice_of(launch, unit), AxpbyElement{launch.arguments}, launch.arguments.flags);
}

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
