// A plan: which memory an op walks. Built from lists of tensors by a pure function, walked by both
// devices.
#pragma once

#include <vector>

#include "math/types.h"

namespace torchamp {

/// The elements of all tensors, concatenated. Tensor t takes the flat range offsets[t] ..
/// offsets[t + 1], and for each of the op's lists holds its address and dtype at [t * lists +
/// list]. Empty tensors are left out; positions[t] is the index of tensor t in the caller's lists.
/// tags[t] and rows[t], 0 where they are left out, mean what the op says.
struct Plan {
  int lists = 0;
  std::vector<void*> data;
  std::vector<DType> dtypes;
  std::vector<int64> offsets = {0};
  std::vector<int32> positions;
  std::vector<uint8> tags;
  std::vector<int32> rows;

  int64 tensors() const { return static_cast<int64>(positions.size()); }
  int64 elements() const { return offsets.back(); }
  void* address(int64 tensor, int list) const { return data[tensor * lists + list]; }
  DType dtype(int64 tensor, int list) const { return dtypes[tensor * lists + list]; }
  uint8 tag(int64 tensor) const { return tags.empty() ? 0 : tags[tensor]; }
  int32 row(int64 tensor) const { return rows.empty() ? 0 : rows[tensor]; }
};

}  // namespace torchamp
