// Peak memory of a run.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <sys/resource.h>
#include <torch/types.h>

/// Peak memory in MiB: torch's allocations on a GPU, otherwise the process's resident memory.
inline double peak_memory_mib(torch::Device device) {
  if (!device.is_cpu()) {
    const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
    return static_cast<double>(stats.allocated_bytes[0].peak) / (1 << 20);
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}
