// A CUDA device for a LibTorch without CUDA: two devices with streams, events and memory, on which
// torch's ops are the CPU's, and torchamp's kernels are executed by libcuda.so.1 of tests/ptx. The
// library is named libtorch_cuda.so, because torchamp looks there for torch's current stream.
//
// Kernels run as late as their stream may, and reach no byte beyond what torch has allocated on
// their device. An op of torch's runs at once, after what its stream has yet to do.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstdint>

namespace simulated {

constexpr c10::DeviceIndex kDevices = 2;

c10::DeviceIndex current_device();
c10::Stream current_stream(c10::DeviceIndex device);
/// The driver's: null for the default stream.
void* handle_of(const c10::Stream& stream);

/// Returns when the stream has done what it has to do. Throws c10::Error with the fault of a
/// kernel.
void synchronize(const c10::Stream& stream);

/// Registers a use of the memory at `data`, which is not freed before the stream has done it.
void record_use(const void* data, const c10::Stream& stream);

/// From now on nothing is freed, as nothing is that a graph has been captured with.
void keep_memory(bool keeps);

bool is_pinned(const void* data);
c10::Allocator& device_allocator();
c10::Allocator& pinned_allocator();

/// What the process has asked of the devices so far.
struct Counts {
  std::uint64_t launches;  ///< of torchamp's kernels
  std::uint64_t ops;       ///< torch's
  std::uint64_t waits;     ///< of the host
};
Counts counts();

void count_op();
void count_wait();

}  // namespace simulated
