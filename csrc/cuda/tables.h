// From a plan to the tables that kernels get.
#pragma once

#include "cuda/launch_table.h"
#include "plan.h"

namespace torchamp::cuda {

template <class Arguments>
Entry<Arguments::kLists> entry_for(const Plan& plan, int64 tensor, uint32 first_unit) {
  Entry<Arguments::kLists> entry;
  for (int list = 0; list < Arguments::kLists; ++list) {
    entry.address[list] = plan.address(tensor, list);
    entry.dtype[list] = plan.dtype(tensor, list);
  }
  const int64 elements = plan.offsets[tensor + 1] - plan.offsets[tensor];
  entry.first_unit = first_unit;
  entry.position = plan.positions[tensor];
  entry.tag = plan.tag(tensor);
  entry.last_unit_elements = static_cast<uint16>((elements - 1) % Arguments::kUnit + 1);
  return entry;
}

template <class Arguments>
int64 units_of(const Plan& plan, int64 tensor) {
  const int64 elements = plan.offsets[tensor + 1] - plan.offsets[tensor];
  return (elements + Arguments::kUnit - 1) / Arguments::kUnit;
}

/// The units of all tensors.
template <class Arguments>
int64 units_of(const Plan& plan) {
  int64 units = 0;
  for (int64 tensor = 0; tensor < plan.tensors(); ++tensor)
    units += units_of<Arguments>(plan, tensor);
  return units;
}

/// Fills the table with the tensors from number `first` on, as many as it holds, and returns the
/// number of the next.
template <class Arguments>
int64 fill(Launch<Arguments>& launch, const Plan& plan, int64 first) {
  launch.entries = 0;
  launch.units = 0;
  int64 tensor = first;
  while (tensor < plan.tensors() && launch.entries < Launch<Arguments>::kCapacity) {
    launch.entry[launch.entries++] = entry_for<Arguments>(plan, tensor, launch.units);
    launch.units += static_cast<uint32>(units_of<Arguments>(plan, tensor));
    ++tensor;
  }
  return tensor;
}

/// Calls visit(launch) with one table after the other, until all tensors of the plan have had their
/// turn.
template <class Arguments, class Visit>
void for_each_launch(const Plan& plan, const Arguments& arguments, Visit visit) {
  Launch<Arguments> launch;
  launch.arguments = arguments;
  for (int64 tensor = 0; tensor < plan.tensors();) {
    tensor = fill(launch, plan, tensor);
    visit(launch);
  }
}

}  // namespace torchamp::cuda
