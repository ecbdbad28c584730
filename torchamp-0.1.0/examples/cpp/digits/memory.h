// Peak memory of a run.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>
#include <torch/types.h>
#include <torch/version.h>

#include <cmath>

/// Peak memory in MiB: torch's allocations on a GPU, otherwise the process's resident memory. NaN
/// on a GPU before torch 2.10, whose allocators do not tell C++.
inline double peak_memory_mib(torch::Device device) {
  if (!device.is_cpu()) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
    const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
    return static_cast<double>(stats.allocated_bytes[0].peak) / (1 << 20);
#else
    return NAN;
#endif
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}
