// The memory of training: counted by what it holds, or a GPU's peak.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/types.h>
#include <torchamp/amp.h>

#include <array>
#include <numeric>

constexpr double kMib = 1 << 20;

/// Bytes, in the order of kKinds.
using Sizes = std::array<int64_t, 5>;
inline constexpr std::array kKinds{"weights", "grads", "masters", "state", "activations"};

/// Of a report that was given a forward.
inline Sizes sizes_of(const amp::MemoryReport& report) {
  const amp::Bytes& kept = report.bytes;
  return {kept.weights, kept.grads, kept.masters, kept.state, report.activations.value()};
}

inline double total(const Sizes& sizes) {
  return static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
}

/// The memory that torch allocates on a GPU from here on.
class PeakMemory {
 public:
  explicit PeakMemory(torch::Device device) : device_(device) {
    if (device.is_cpu()) return;
    allocator()->resetPeakStats(device.index());
    before_ = stats().current;
  }

  /// Allocated at the peak; on a CPU what was counted.
  double mib(const Sizes& counted) const {
    return (device_.is_cpu() ? total(counted) : static_cast<double>(stats().peak - before_)) / kMib;
  }

 private:
  c10::DeviceAllocator* allocator() const { return c10::getDeviceAllocator(device_.type()); }
  c10::CachingAllocator::Stat stats() const {
    return allocator()->getDeviceStats(device_.index()).allocated_bytes[0];
  }

  torch::Device device_;
  int64_t before_ = 0;
};

/// What PeakMemory measures.
inline const char* memory_label(torch::Device device) {
  return device.is_cpu() ? "Memory is counted by amp::report: weights, grads, masters, state, and "
                           "what the forward of a batch leaves allocated."
                         : "Memory is what torch has allocated at the peak.";
}
