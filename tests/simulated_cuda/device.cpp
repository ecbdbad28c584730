#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <memory>

#include "../ptx/libcuda.h"

namespace simulated {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
using c10::StreamId;

constexpr StreamId kPooledStreams = 32;

thread_local DeviceIndex device_now = 0;
thread_local std::array<StreamId, kDevices> streams_now{};
std::atomic<StreamId> streams_given{0};
std::atomic<std::uint64_t> ops{0}, waits{0};

void check(int code) {
  TORCH_CHECK(code == 0, "CUDA error ", code, ": ", ptxFault());
}

struct Event {
  Stream stream;
  std::uint64_t position;
};

const Event* event_at(void* event) {
  return static_cast<const Event*>(event);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return at::kCUDA; }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return {at::kCUDA, device_now}; }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.is_cuda() && device.index() >= 0 && device.index() < kDevices,
                "CUDA error: invalid device ordinal");
    device_now = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override { device_now = device.index(); }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }

  Stream getStream(Device device) const noexcept override {
    return current_stream(device.has_index() ? device.index() : device_now);
  }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return Stream(Stream::UNSAFE, device, 1 + streams_given++ % kPooledStreams);
  }
  Stream getNewStream(Device device, int) const override {
    return getStreamFromGlobalPool(device, false);
  }
  Stream exchangeStream(Stream stream) const noexcept override {
    const StreamId before = std::exchange(streams_now[stream.device_index()], stream.id());
    return Stream(Stream::UNSAFE, stream.device(), before);
  }
  bool queryStream(const Stream& stream) const override {
    return query({stream, ptxRecord(stream.device_index(), handle_of(stream))});
  }
  void synchronizeStream(const Stream& stream) const override {
    count_wait();
    synchronize(stream);
  }
  void synchronizeDevice(DeviceIndex device) const override {
    count_wait();
    for (StreamId id = 0; id <= kPooledStreams; ++id) {
      synchronize(Stream(Stream::UNSAFE, {at::kCUDA, device}, id));
    }
  }

  void destroyEvent(void* event, DeviceIndex) const noexcept override { delete event_at(event); }
  void record(void** event, const Stream& stream, DeviceIndex, c10::EventFlag) const override {
    delete event_at(*event);
    *event = new Event{stream, ptxRecord(stream.device_index(), handle_of(stream))};
  }
  void block(void* event, const Stream& stream) const override {
    if (event == nullptr) return;
    const auto& [other, position] = *event_at(event);
    ptxWait(stream.device_index(), handle_of(stream), other.device_index(), handle_of(other),
            position);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || query(*event_at(event));
  }
  void synchronizeEvent(void* event) const override {
    count_wait();
    if (event == nullptr) return;
    const auto& [stream, position] = *event_at(event);
    check(ptxSynchronize(stream.device_index(), handle_of(stream), position));
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    record_use(data.get(), stream);
  }

 private:
  static bool query(const Event& event) {
    constexpr int kNotReady = 600;
    const auto& [stream, position] = event;
    const int code = ptxQuery(stream.device_index(), handle_of(stream), position);
    if (code != kNotReady) check(code);
    return code != kNotReady;
  }
};

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}

  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  // Of some versions of torch:
  int getNumGPUs() const { return kDevices; }  // NOLINT
  DeviceIndex current_device() const override { return device_now; }
  DeviceIndex getCurrentDevice() const override { return device_now; }

  const at::Generator& getDefaultGenerator(DeviceIndex device) const override {
    static const std::array<at::Generator, kDevices> generators = {
        at::detail::createCPUGenerator(), at::detail::createCPUGenerator()};
    return generators.at(device < 0 ? device_now : device);
  }

  Device getDeviceFromPtr(void*) const override { return {at::kCUDA, device_now}; }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  at::Allocator* getCUDADeviceAllocator() const override { return &device_allocator(); }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

const bool is_late = (ptxQueueLaunches(), true);

}  // namespace

DeviceIndex current_device() {
  return device_now;
}

Stream current_stream(DeviceIndex device) {
  return Stream(Stream::UNSAFE, {at::kCUDA, device}, streams_now[device]);
}

void* handle_of(const Stream& stream) {
  return reinterpret_cast<void*>(static_cast<std::intptr_t>(stream.id()));
}

void synchronize(const Stream& stream) {
  void* const handle = handle_of(stream);
  const DeviceIndex device = stream.device_index();
  check(ptxSynchronize(device, handle, ptxRecord(device, handle)));
}

Counts counts() {
  return {ptxLaunches(), ops, waits};
}

void count_op() {
  ++ops;
}

void count_wait() {
  ++waits;
}

}  // namespace simulated

namespace at {
using CUDAHooks = simulated::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)  // under the name that LibTorch asks for
}  // namespace at

/// As libtorch_cuda.so has it, in LibTorch's C interface.
extern "C" __attribute__((visibility("default"))) int aoti_torch_get_current_cuda_stream(
    int device, void** stream) {
  if (device < 0 || device >= simulated::kDevices) return 1;
  *stream = simulated::handle_of(simulated::current_stream(static_cast<c10::DeviceIndex>(device)));
  return 0;
}
