// The memory of training: counted by what it holds, or a GPU's peak.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/types.h>
#include <torchamp/amp.h>

#include <array>
#include <atomic>
#include <memory>
#include <numeric>

constexpr double kMib = 1 << 20;

/// Bytes, in the order of kKinds.
using Sizes = std::array<int64_t, 5>;
inline constexpr std::array kKinds{"weights", "grads", "masters", "state", "activations"};

inline Sizes sizes_of(const amp::Bytes& kept, int64_t activations) {
  return {kept.weights, kept.grads, kept.masters, kept.state, activations};
}

inline double total(const Sizes& sizes) {
  return static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
}

/// Told of every allocation on a device.
class Allocations : public c10::MemoryReportingInfoBase {
 public:
  explicit Allocations(torch::Device device) : device_(device) {}
  int64_t bytes() const { return bytes_; }

  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device device) override {
    if (device.type() == device_.type()) bytes_ += size;
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  torch::Device device_;
  std::atomic<int64_t> bytes_{0};
};

/// The activations of a batch: what `forward(batch)` in this thread has allocated and not freed,
/// with a copy of the batch.
template <class Forward>
int64_t activation_bytes(Forward&& forward, const torch::Tensor& batch) {
  const auto allocations = std::make_shared<Allocations>(batch.device());
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocations);
  const torch::Tensor output = forward(batch.clone());
  return allocations->bytes();
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
  return device.is_cpu() ? "Memory is counted: weights, grads, masters and state by amp::report, "
                           "and the activations of a batch by what a forward leaves allocated."
                         : "Memory is what torch has allocated at the peak.";
}
