#include <c10/core/Allocator.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "../ptx/libcuda.h"
#include "device.h"

namespace simulated {
namespace {

constexpr std::size_t kAlignment = 512;

/// An allocation. Its bytes begin as NaNs.
struct Block {
  int device;  ///< ptxHost: pinned
  std::size_t bytes;
  std::vector<c10::Stream> used_by;
};

std::mutex mutex;
std::map<const void*, Block> blocks;  // by their addresses

void* allocate_block(int device, std::size_t bytes, std::vector<c10::Stream> used_by) {
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* const data = std::aligned_alloc(kAlignment, rounded);
  std::memset(data, 0xff, bytes);
  ptxAllocated(device, data, bytes);
  const std::lock_guard<std::mutex> lock(mutex);
  blocks.emplace(data, Block{device, bytes, std::move(used_by)});
  return data;
}

/// For LibTorch's profiler.
void report(void* data, std::int64_t change, int device) {
  if (device == ptxHost) return;
  c10::reportMemoryUsageToProfiler(data, change, 0, 0,
                                   {c10::kCUDA, static_cast<c10::DeviceIndex>(device)});
}

/// Waits for the streams that are known to use the block. What others have yet to do there faults.
void free_block(void* data) {
  std::unique_lock<std::mutex> lock(mutex);
  const Block block = std::move(blocks.at(data));
  blocks.erase(data);
  lock.unlock();
  for (const c10::Stream& stream : block.used_by) {
    try {
      synchronize(stream);
    } catch (const c10::Error&) {  // which the next call reports, too
    }
  }
  report(data, -static_cast<std::int64_t>(block.bytes), block.device);
  ptxFreed(data);
  std::free(data);
}

/// On the current device, for its current stream.
struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::kCUDA, current_device());
    if (bytes == 0) return {nullptr, device};
    void* const data = allocate_block(device.index(), bytes, {current_stream(device.index())});
    report(data, static_cast<std::int64_t>(bytes), device.index());
    return {data, data, &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    synchronize(current_stream(current_device()));
    std::memcpy(to, from, bytes);
  }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::kCPU};
    void* const data = allocate_block(ptxHost, bytes, {});
    return {data, data, &free_block, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

const bool is_set = (c10::SetAllocator(c10::kCUDA, &device_allocator()), true);

}  // namespace

void record_use(const void* data, const c10::Stream& stream) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = blocks.find(data);
  if (found != blocks.end()) found->second.used_by.push_back(stream);
}

/// Whether it lies in a pinned block.
bool is_pinned(const void* data) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto after = blocks.upper_bound(data);
  return after != blocks.begin() && std::prev(after)->second.device == ptxHost;
}

c10::Allocator& device_allocator() {
  static DeviceAllocator& allocator = *new DeviceAllocator;
  return allocator;
}

c10::Allocator& pinned_allocator() {
  static PinnedAllocator& allocator = *new PinnedAllocator;
  return allocator;
}

}  // namespace simulated
