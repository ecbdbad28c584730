#include <c10/core/Allocator.h>

#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "../ptx/libcuda.h"
#include "device.h"

namespace simulated {
namespace {

struct Block {
  std::size_t bytes;
  std::optional<c10::Stream> stream;  ///< for which it was allocated; none: pinned
  std::vector<c10::Stream> used_by;   ///< others
};

std::mutex mutex;
std::map<const void*, Block> blocks;  // by their addresses
bool keeps_memory = false;

/// For LibTorch's profiler.
void report(void* data, std::int64_t change, c10::Device device) {
  c10::reportMemoryUsageToProfiler(data, change, 0, 0, device);
}

void* allocate_block(std::size_t bytes, std::optional<c10::Stream> stream) {
  void* const data = ptxAllocate(stream ? stream->device_index() : ptxHost, bytes);
  if (stream) report(data, static_cast<std::int64_t>(bytes), stream->device());
  const std::lock_guard<std::mutex> lock(mutex);
  blocks.emplace(data, Block{bytes, stream, {}});
  return data;
}

/// What streams that are not known to use the block have yet to do there faults.
void free_block(void* data) {
  std::unique_lock<std::mutex> lock(mutex);
  if (keeps_memory) return;
  const Block block = std::move(blocks.at(data));
  blocks.erase(data);
  lock.unlock();
  if (!block.stream) return ptxFree(ptxHost, nullptr, data);
  const c10::DeviceIndex device = block.stream->device_index();
  void* const stream = handle_of(*block.stream);
  report(data, -static_cast<std::int64_t>(block.bytes), block.stream->device());
  for (const c10::Stream& each : block.used_by) {
    void* const other = handle_of(each);
    ptxWait(device, stream, each.device_index(), other, ptxRecord(each.device_index(), other));
  }
  ptxFree(device, stream, data);
}

/// On the current device, for its current stream.
struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(c10::kCUDA, current_device());
    if (bytes == 0) return {nullptr, device};
    void* const data = allocate_block(bytes, current_stream(device.index()));
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
    void* const data = allocate_block(bytes, std::nullopt);
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

void keep_memory(bool keeps) {
  const std::lock_guard<std::mutex> lock(mutex);
  keeps_memory = keeps;
}

/// Whether it lies in a pinned block.
bool is_pinned(const void* data) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto after = blocks.upper_bound(data);
  return after != blocks.begin() && !std::prev(after)->second.stream;
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
