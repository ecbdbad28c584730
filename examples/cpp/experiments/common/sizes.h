// The memory of training: counted by what it holds, or a GPU's peak.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/types.h>
#include <torch/version.h>
#include <torchamp/amp.h>

#include <array>
#include <cmath>
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

/// Bytes that torch has allocated on a GPU. Both are NaN before torch 2.10, whose allocators do not
/// tell C++.
struct Allocated {
  double now = NAN;
  double peak = NAN;
};

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
inline Allocated allocated_on(torch::Device device) {
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return {static_cast<double>(stats.allocated_bytes[0].current),
          static_cast<double>(stats.allocated_bytes[0].peak)};
}
inline void reset_peak(torch::Device device) {
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}
#else
inline Allocated allocated_on(torch::Device) {
  return {};
}
inline void reset_peak(torch::Device) {}
#endif

/// The memory that torch allocates on a GPU from here on.
class PeakMemory {
 public:
  explicit PeakMemory(torch::Device device) : device_(device) {
    if (device.is_cpu()) return;
    reset_peak(device);
    before_ = allocated_on(device).now;
  }

  /// Allocated at the peak; on a CPU what was counted.
  double mib(const Sizes& counted) const {
    return (device_.is_cpu() ? total(counted) : allocated_on(device_).peak - before_) / kMib;
  }

 private:
  torch::Device device_;
  double before_ = 0.0;
};

/// What PeakMemory measures.
inline const char* memory_label(torch::Device device) {
  return device.is_cpu() ? "Memory is counted by amp::report: weights, grads, masters, state, and "
                           "what the forward of a batch leaves allocated."
                         : "Memory is what torch has allocated at the peak.";
}
