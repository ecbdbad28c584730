// Starting kernels.
#pragma once

#include "cuda/block.h"
#include "cuda/kernel.h"
#include "cuda/tables.h"
#include "kernels.h"

namespace torchamp::cuda {

/// Starts blocks of kThreads threads on the queue. `parameter` is the kernel's only one, and is
/// copied. Throws std::runtime_error where the device has no kernels or the driver refuses.
void launch(Queue queue, Kernel kernel, uint32 blocks, const void* parameter);

/// Starts a kernel that walks the plan a unit a warp.
template <class Arguments>
void launch_warps(Queue queue, Kernel kernel, const Plan& plan, const Arguments& arguments) {
  for_each_launch(plan, arguments, [&](Launch<Arguments>& table) {
    launch(queue, kernel, (table.units + kWarpsPerBlock - 1) / kWarpsPerBlock, &table);
  });
}

}  // namespace torchamp::cuda
