// The memory of training: counted by what it holds, or a GPU's peak.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/version.h>

#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

constexpr double kMib = 1 << 20;

/// Bytes, in the order of kKinds.
using Sizes = std::array<int64_t, 5>;
inline constexpr std::array kKinds{"weights", "grads", "masters", "state", "activations"};

inline int64_t bytes_of(const std::vector<torch::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const torch::Tensor& tensor : tensors) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

/// What SGD or Adam keeps for the parameters that it has stepped.
inline int64_t bytes_of_state(const torch::optim::Optimizer& optimizer) {
  int64_t bytes = 0;
  for (const auto& entry : optimizer.state()) {
    const torch::optim::OptimizerParamState* state = entry.second.get();
    if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(state)) {
      bytes += bytes_of({sgd->momentum_buffer()});
    } else if (const auto* adam = dynamic_cast<const torch::optim::AdamParamState*>(state)) {
      bytes += bytes_of({adam->exp_avg(), adam->exp_avg_sq()});
    }
  }
  return bytes;
}

/// Counts the bytes that a thread allocates on a device, less those that it frees.
class Allocations : public c10::MemoryReportingInfoBase {
 public:
  explicit Allocations(torch::DeviceType type) : type_(type) {}
  int64_t bytes() const { return bytes_; }

  void reportMemoryUsage(void*, int64_t size, size_t, size_t, torch::Device device) override {
    if (device.type() == type_) bytes_ += size;
  }
  bool memoryProfilingEnabled() const override { return true; }

 private:
  torch::DeviceType type_;
  std::atomic<int64_t> bytes_{0};
};

/// The memory of training, after a step. `forward` calls the model, in this thread. `has_masters`:
/// whether 16-bit parameters have copies in float32.
inline Sizes count_sizes(const torch::nn::Module& net, const torch::optim::Optimizer& optimizer,
                         bool has_masters, const std::function<torch::Tensor()>& forward) {
  const auto params = net.parameters();
  Sizes sizes{bytes_of(params) + bytes_of(net.buffers()), 0, 0, bytes_of_state(optimizer), 0};
  for (const torch::Tensor& param : params) {
    sizes[1] += bytes_of({param.grad()});
    if (has_masters && param.scalar_type() != torch::kFloat) sizes[2] += 4 * param.numel();
  }
  const auto allocations = std::make_shared<Allocations>(params.front().device().type());
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, allocations);
  const torch::Tensor output = forward();
  sizes[4] = allocations->bytes();
  return sizes;
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
  return device.is_cpu() ? "Memory is the sum of weights, grads, masters, state, and what the "
                           "forward of a batch leaves allocated."
                         : "Memory is what torch has allocated at the peak.";
}
