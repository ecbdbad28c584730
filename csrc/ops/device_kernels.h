// The kernels that an op runs on a device.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <utility>

#include "backends/kernels.h"
#include "cuda/stream.h"
#include "ops/resident_tables.h"

namespace torchamp {

/// Whether this process may run kernels on the device, whose backend is chosen if need be. Warns
/// once of a CUDA device that has none although TORCHAMP_KERNELS does not ask for that. Throws
/// std::runtime_error as cuda::backend() does.
bool has_kernels(at::Device device);

/// The kernels for one device: the CPU's, CUDA's, or none: then ATen does everything.
class DeviceKernels {
 public:
  explicit DeviceKernels(at::Device device) : DeviceKernels(device, has_kernels(device)) {}
  DeviceKernels(at::Device device, bool usable) : device_(device), usable_(usable) {}

  at::Device device() const { return device_; }
  /// Whether this process may run kernels on the device.
  bool usable() const { return usable_; }

  /// Calls `on_cpu`, or `on_cuda` on the device's current stream.
  template <class... Params, class... Args>
  void run(void (*on_cpu)(Params...), void (*on_cuda)(cuda::Queue, Params...),
           Args&&... args) const {
    if (device_.is_cpu()) return on_cpu(std::forward<Args>(args)...);
    const c10::DeviceGuard guard(device_);
    cuda::Queue queue = cuda::current_queue(device_.index());
    ResidentTables tables(queue);
    queue.tables = &tables;
    on_cuda(queue, std::forward<Args>(args)...);
  }

 private:
  at::Device device_;
  bool usable_;
};

/// uint8 of `bytes` elements on CUDA device number `device`, for one launch.
inline at::Tensor make_workspace(int64 bytes, int device) {
  const at::Device cuda(at::kCUDA, static_cast<at::DeviceIndex>(device));
  return at::empty({bytes}, at::TensorOptions().device(cuda).dtype(at::kByte));
}

}  // namespace torchamp
