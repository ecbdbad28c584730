// What a kernel gets: its op's arguments and a table of tensors, by value in one parameter. There
// is no memory to keep alive or to copy, so launches may be captured into a graph and replayed as
// they are.
//
// The work is cut into units: up to kUnit neighbouring elements of one tensor, numbered through the
// table.
#pragma once

#include "math/types.h"

namespace torchamp::cuda {

/// One tensor of each list. Its units are first_unit … the next entry's first_unit - 1; all are
/// full but the last.
template <int kLists>
struct Entry {
  void* address[kLists];
  uint32 first_unit;
  int32 position;
  uint16 last_unit_elements;
  uint8 tag;
  DType dtype[kLists];
};

/// CUDA's limit on a parameter (sm_70 and CUDA 12.1 on), less four bytes that alignment costs.
constexpr int kParameterBytes = 32760;

template <class OpArguments>
struct Launch {
  using Arguments = OpArguments;
  using EntryOf = Entry<Arguments::kLists>;
  static constexpr int kCapacity = (kParameterBytes - sizeof(Arguments) - 16) / sizeof(EntryOf);

  Arguments arguments;
  int32 entries;
  uint32 units;
  EntryOf entry[kCapacity];
};

}  // namespace torchamp::cuda
