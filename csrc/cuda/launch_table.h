// A kernel's parameter: its op's arguments and a table of tensors, by value in one parameter. There
// is no memory to keep alive or to copy, so launches can be captured into a graph and replayed.
// Only tables that fill several parameters may be on the device instead.
//
// The work is cut into units of neighbouring elements of one tensor, numbered through the table.
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
  uint16 row;     ///< of the launch's rows
  uint16 dtypes;  ///< two bits per list
  uint8 tag;

  TORCHAMP_MATH DType dtype(int list) const { return static_cast<DType>(dtypes >> (2 * list) & 3); }
  TORCHAMP_MATH void set_dtype(int list, DType dtype) {
    dtypes = static_cast<uint16>(dtypes | static_cast<int>(dtype) << (2 * list));
  }
};

/// The largest number of rows. Tables in parameters hold fewer.
constexpr int kMostRows = 1 << 16;

/// A launch's values in addition to its table.
template <class OpArguments>
struct LaunchHeader {
  using Arguments = OpArguments;
  using EntryOf = Entry<Arguments::kLists>;

  Arguments arguments;
  int32 entries;
  uint32 units;
  uint32 unit;           ///< elements of a full one
  int32 first_position;  ///< of the first entry
  bool consecutive;      ///< whether each entry's position follows the previous one's
  bool backwards;        ///< whether the first blocks process the last units
};

/// Entries from the front of a table's bytes, rows from their end.
template <class OpArguments>
struct Table : LaunchHeader<OpArguments> {
  using EntryOf = typename LaunchHeader<OpArguments>::EntryOf;

  TORCHAMP_MATH static const EntryOf& entry_in(const unsigned char* bytes, int i) {
    return reinterpret_cast<const EntryOf*>(bytes)[i];
  }
  template <class Row>
  TORCHAMP_MATH static const Row& row_in(const unsigned char* end, int i) {
    return reinterpret_cast<const Row*>(end)[-1 - i];
  }
};

/// A table in the launch's parameter.
template <class OpArguments, int kBytes>
struct ParameterLaunch : Table<OpArguments> {
  static constexpr int kTableBytes =
      static_cast<int>((kBytes - sizeof(LaunchHeader<OpArguments>)) / 8 * 8);
  /// Entries, where there are no rows.
  static constexpr int kCapacity =
      kTableBytes / static_cast<int>(sizeof(typename LaunchHeader<OpArguments>::EntryOf));

  alignas(8) unsigned char bytes[kTableBytes];

  TORCHAMP_MATH const auto& entry(int i) const { return this->entry_in(bytes, i); }
  TORCHAMP_MATH const auto& row(int i) const {
    return this->template row_in<typename OpArguments::Row>(bytes + kTableBytes, i);
  }
};

/// CUDA's limit on a parameter (sm_70 and CUDA 12.1 on), less four bytes that alignment costs; and
/// its limit before, which is sent faster.
constexpr int kParameterBytes = 32760, kSmallParameterBytes = 4096;

template <class OpArguments>
using Launch = ParameterLaunch<OpArguments, kParameterBytes>;
template <class OpArguments>
using SmallLaunch = ParameterLaunch<OpArguments, kSmallParameterBytes>;

/// A table on the device.
template <class OpArguments>
struct ResidentLaunch : Table<OpArguments> {
  const unsigned char* begin;
  const unsigned char* end;

  TORCHAMP_MATH const auto& entry(int i) const { return this->entry_in(begin, i); }
  TORCHAMP_MATH const auto& row(int i) const {
    return this->template row_in<typename OpArguments::Row>(end, i);
  }
};

}  // namespace torchamp::cuda
