// Starting kernels.
#pragma once

#include "backends/kernels.h"
#include "cuda/block.h"
#include "cuda/kernel.h"
#include "cuda/table_store.h"
#include "cuda/tables.h"

namespace torchamp::cuda {

/// Starts blocks of `threads` threads on the queue. `parameter` is the kernel's only one, and is
/// copied. Throws std::runtime_error if the device has no kernels or the driver fails.
void launch(Queue queue, Kernel kernel, uint32 blocks, int threads, const void* parameter);

/// Elements of a warp's unit.
inline int64 warp_unit_for(const Plan& plan) {
  constexpr int64 kLarge = int64{1} << 26;  // elements that fill any card with large units
  return plan.elements() < kLarge ? kWarpUnit : kLargeWarpUnit;
}

/// What a block works on.
enum class BlockOf { kUnits /* one per warp */, kUnit, kElement, kTensor };

/// How a per-iteration kernel is started.
struct Iteration {
  Function function;
  int threads;
  bool backwards = false;
  BlockOf block = BlockOf::kUnits;
};

template <class Parameter>
uint32 blocks_for(const Iteration& iteration, const Parameter& launched) {
  if (iteration.block == BlockOf::kTensor) return static_cast<uint32>(launched.entries);
  if (iteration.block != BlockOf::kUnits) return launched.units;
  const auto warps = static_cast<uint32>(iteration.threads / kWarp);
  return (launched.units + warps - 1) / warps;
}

/// Elements of a unit.
inline int64 unit_for(const Iteration& iteration, const Plan& plan) {
  if (iteration.block == BlockOf::kElement) return 1;
  return iteration.block == BlockOf::kUnits ? warp_unit_for(plan) : kBlockUnit;
}

/// Starts the kernel for one table, after prepare(parameter, blocks), which may count the tables.
template <class Parameter, class Prepare>
void launch_table(Queue queue, const Iteration& iteration, TableAt table, Parameter& launched,
                  Prepare& prepare) {
  const uint32 blocks = blocks_for(iteration, launched);
  launched.backwards = iteration.backwards;
  prepare(launched, blocks);
  launch(queue, {iteration.function, table}, blocks, iteration.threads, &launched);
}

/// Launches once for each table.
template <class Parameter, class Arguments, class Prepare>
void launch_parameters(Queue queue, const Iteration& iteration, TableAt table, const Plan& plan,
                       const Arguments& arguments, const Rows<Arguments>& rows, Prepare prepare) {
  for_each_table<Parameter>(
      plan, arguments, unit_for(iteration, plan), rows,
      [&](Parameter& launched) { launch_table(queue, iteration, table, launched, prepare); });
}

/// Starts a kernel that walks the plan, one unit per warp.
template <class Arguments>
void launch_warps(Queue queue, Function function, const Plan& plan, const Arguments& arguments) {
  launch_parameters<Launch<Arguments>>(queue, {function, kThreads}, TableAt::kParameter, plan,
                                       arguments, {}, [](auto&, uint32) {});
}

/// Launches once, with one table on the device. Returns false if it cannot be put there now.
template <class Arguments, class Prepare>
bool launch_resident(Queue queue, const Iteration& iteration, const Plan& plan,
                     const Arguments& arguments, const Rows<Arguments>& rows, Prepare prepare) {
  ResidentLaunch<Arguments> launched;
  begin(launched, arguments, unit_for(iteration, plan));
  std::vector<unsigned char> table(table_bytes<Arguments>(plan, rows));
  TableWriter<Arguments> writer(launched, table.data(), table.data() + table.size(), rows);
  for (int64 tensor = 0; tensor < plan.tensors(); ++tensor) writer.add(plan, tensor);
  const unsigned char* const placed = queue.tables->put(table);
  if (placed == nullptr) return false;
  launched.begin = placed;
  launched.end = placed + table.size();
  launch_table(queue, iteration, TableAt::kDevice, launched, prepare);
  return true;
}

/// Starts a per-iteration kernel in the cheapest way for a table of this length: in a small
/// parameter, in a large one, on the device, or in several parameters.
template <class Arguments, class Prepare>
void launch_iteration(Queue queue, const Iteration& iteration, const Plan& plan,
                      const Arguments& arguments, const Rows<Arguments>& rows, Prepare prepare) {
  const int64 bytes = table_bytes<Arguments>(plan, rows);
  if (bytes <= SmallLaunch<Arguments>::kTableBytes) {
    return launch_parameters<SmallLaunch<Arguments>>(queue, iteration, TableAt::kSmallParameter,
                                                     plan, arguments, rows, prepare);
  }
  const bool fits = bytes <= Launch<Arguments>::kTableBytes;
  const bool rows_have_numbers = rows.size() <= kMostRows;
  const bool may_be_resident = !fits && rows_have_numbers && queue.tables != nullptr;
  if (may_be_resident && launch_resident(queue, iteration, plan, arguments, rows, prepare)) return;
  launch_parameters<Launch<Arguments>>(queue, iteration, TableAt::kParameter, plan, arguments, rows,
                                       prepare);
}

}  // namespace torchamp::cuda
