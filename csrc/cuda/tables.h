// Converts a plan to the tables of kernels.
#pragma once

#include <type_traits>
#include <vector>

#include "backends/plan.h"
#include "cuda/arguments.h"
#include "cuda/launch_table.h"

namespace torchamp::cuda {

inline int64 units_of(const Plan& plan, int64 tensor, int64 unit) {
  return (plan.offsets[tensor + 1] - plan.offsets[tensor] + unit - 1) / unit;
}

/// The units of all tensors.
inline int64 units_of(const Plan& plan, int64 unit) {
  int64 units = 0;
  for (int64 tensor = 0; tensor < plan.tensors(); ++tensor) units += units_of(plan, tensor, unit);
  return units;
}

template <class Arguments>
Entry<Arguments::kLists> entry_for(const Plan& plan, int64 tensor, uint32 first_unit, int64 unit) {
  Entry<Arguments::kLists> entry{};
  for (int list = 0; list < Arguments::kLists; ++list) {
    entry.address[list] = plan.address(tensor, list);
    entry.set_dtype(list, plan.dtype(tensor, list));
  }
  const int64 elements = plan.offsets[tensor + 1] - plan.offsets[tensor];
  entry.first_unit = first_unit;
  entry.position = plan.positions[tensor];
  entry.tag = plan.tag(tensor);
  entry.last_unit_elements = static_cast<uint16>((elements - 1) % unit + 1);
  return entry;
}

/// What an op's rows are, if it has any.
template <class Arguments, class = void>
struct RowOf {
  using type = HyperRow;
};
template <class Arguments>
struct RowOf<Arguments, std::void_t<typename Arguments::Row>> {
  using type = typename Arguments::Row;
};

/// The rows of a plan; empty if it has none.
template <class Arguments>
using Rows = std::vector<typename RowOf<Arguments>::type>;

/// Writes the tensors of a plan, and the rows that they name, into a table.
template <class Arguments>
class TableWriter {
 public:
  using EntryOf = Entry<Arguments::kLists>;
  using Row = typename RowOf<Arguments>::type;

  TableWriter(Table<Arguments>& header, unsigned char* begin, unsigned char* end,
              const Rows<Arguments>& rows)
      : header_(header),
        front_(begin),
        back_(end),
        end_(end),
        rows_(rows),
        slots_(rows.size(), -1) {
    header.entries = 0;
    header.units = 0;
    header.consecutive = true;
  }

  /// Returns false if there is no room left.
  bool add(const Plan& plan, int64 tensor) {
    if (!has_room(plan, tensor)) return false;
    EntryOf entry = entry_for<Arguments>(plan, tensor, header_.units, header_.unit);
    entry.row = static_cast<uint16>(slot_of(plan, tensor));
    if (header_.entries == 0) header_.first_position = entry.position;
    header_.consecutive &= entry.position == header_.first_position + header_.entries;
    *reinterpret_cast<EntryOf*>(front_) = entry;
    front_ += sizeof(EntryOf);
    header_.entries += 1;
    header_.units += static_cast<uint32>(units_of(plan, tensor, header_.unit));
    return true;
  }

 private:
  bool has_room(const Plan& plan, int64 tensor) const {
    const bool new_row = !rows_.empty() && slots_[plan.row(tensor)] < 0;
    const std::size_t needed = sizeof(EntryOf) + (new_row ? sizeof(Row) : 0);
    return back_ - front_ >= static_cast<std::ptrdiff_t>(needed);
  }

  /// The index of the tensor's row, which is written at its first use.
  int32 slot_of(const Plan& plan, int64 tensor) {
    if (rows_.empty()) return 0;
    int32& slot = slots_[plan.row(tensor)];
    if (slot >= 0) return slot;
    slot = static_cast<int32>((end_ - back_) / sizeof(Row));
    back_ -= sizeof(Row);
    *reinterpret_cast<Row*>(back_) = rows_[plan.row(tensor)];
    return slot;
  }

  Table<Arguments>& header_;
  unsigned char* front_;
  unsigned char* back_;
  unsigned char* end_;
  const Rows<Arguments>& rows_;
  std::vector<int32> slots_;
};

/// Fills the table with the tensors from number `first` on, as many as it holds, and returns the
/// number of the next.
template <class Arguments, int kBytes>
int64 fill(ParameterLaunch<Arguments, kBytes>& launch, const Plan& plan, int64 first,
           const Rows<Arguments>& rows = {}) {
  TableWriter<Arguments> writer(launch, launch.bytes, launch.bytes + launch.kTableBytes, rows);
  int64 tensor = first;
  while (tensor < plan.tensors() && writer.add(plan, tensor)) ++tensor;
  return tensor;
}

/// Bytes of a table with all tensors and rows.
template <class Arguments>
int64 table_bytes(const Plan& plan, const Rows<Arguments>& rows = {}) {
  return plan.tensors() * static_cast<int64>(sizeof(Entry<Arguments::kLists>)) +
         static_cast<int64>(rows.size() * sizeof(typename RowOf<Arguments>::type));
}

template <class Launch, class Arguments>
void begin(Launch& launch, const Arguments& arguments, int64 unit) {
  launch.arguments = arguments;
  launch.unit = static_cast<uint32>(unit);
  launch.backwards = false;
}

/// Calls visit(launch) with one table after the other, until all tensors of the plan are
/// visited.
template <class Launch, class Arguments, class Visit>
void for_each_table(const Plan& plan, const Arguments& arguments, int64 unit,
                    const Rows<Arguments>& rows, Visit visit) {
  Launch launch;
  begin(launch, arguments, unit);
  for (int64 tensor = 0; tensor < plan.tensors();) {
    tensor = fill(launch, plan, tensor, rows);
    visit(launch);
  }
}

}  // namespace torchamp::cuda
