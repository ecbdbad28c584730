// Maps a unit's number to its elements in each list.
#pragma once

#include "cuda/device.h"
#include "cuda/launch_table.h"
#include "cuda/vector.h"

namespace torchamp::cuda {

/// `count` neighbouring elements of one tensor, in each list; null in lists that lack it.
template <int kLists>
struct Slice {
  char* address[kLists];
  DType dtype[kLists];
  int count;
  int32 position;
  int64 begin;  ///< number of the first element in its tensor
};

/// The last entry whose first unit is not after `unit`.
template <class Launch>
TORCHAMP_DEVICE int entry_of(const Launch& launch, uint32 unit) {
  if (launch.units == static_cast<uint32>(launch.entries)) return static_cast<int>(unit);
  int low = 0;
  int high = launch.entries;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (launch.entry(middle).first_unit <= unit) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// The unit that follows the last one of `entry`.
template <class Launch>
TORCHAMP_DEVICE uint32 end_unit(const Launch& launch, int entry) {
  return entry + 1 < launch.entries ? launch.entry(entry + 1).first_unit : launch.units;
}

/// The elements of `unit`, which is one of the entry's.
template <class Launch>
TORCHAMP_DEVICE auto slice_of(const Launch& launch, uint32 unit, int index) {
  constexpr int kLists = Launch::Arguments::kLists;
  const auto& entry = launch.entry(index);
  const bool last = unit + 1 == end_unit(launch, index);
  Slice<kLists> slice;
  slice.begin = static_cast<int64>(unit - entry.first_unit) * launch.unit;
  TORCHAMP_UNROLL
  for (int list = 0; list < kLists; ++list) {
    const DType dtype = entry.dtype(list);
    char* address = static_cast<char*>(entry.address[list]);
    slice.dtype[list] = dtype;
    slice.address[list] = address == nullptr ? nullptr : address + slice.begin * size_of(dtype);
  }
  slice.count = last ? entry.last_unit_elements : static_cast<int>(launch.unit);
  slice.position = entry.position;
  return slice;
}

template <class Launch>
TORCHAMP_DEVICE auto slice_of(const Launch& launch, uint32 unit) {
  return slice_of(launch, unit, entry_of(launch, unit));
}

/// The unit of the calling warp; there may be none of that number.
template <class Launch>
TORCHAMP_DEVICE uint32 warp_unit(const Launch& launch) {
  const uint32 warp = blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  return launch.backwards ? launch.units - 1 - warp : warp;
}

}  // namespace torchamp::cuda
