#include "cuda/registry.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>

#include "cuda/stream.h"

namespace torchamp::cuda {
namespace {

constexpr int kMaxDevices = 64;

std::array<std::atomic<Device*>, kMaxDevices> devices{};
std::mutex loading;
std::atomic<bool> forked{false};

void watch_forks() {
  static const int failure = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  if (failure != 0) throw std::runtime_error("pthread_atfork failed");
}

void require_usable(int device) {
  if (device < 0 || device >= kMaxDevices) {
    throw std::runtime_error("expected a CUDA device from 0 to 63, got " + std::to_string(device));
  }
  if (forked) {
    throw std::runtime_error(
        "torchamp's CUDA kernels were loaded before this process was forked and cannot be used in "
        "it: use the 'spawn' start method");
  }
}

Module load_on(int device) {
  if (forced_aten()) return load_module(Driver{}, device, Choice::kAten);
  return load_module(driver(), device, choice());
}

Module load_if_torch_has(int device) {
  try {
    if (!forced_aten()) current_queue(device);
  } catch (const std::runtime_error& error) {
    if (choice() != Choice::kAuto) throw;
    return aten_module(error.what());
  }
  return load_on(device);
}

template <class Load>
Device& find_or_load(int device, Load load) {
  require_usable(device);
  if (Device* known = devices[device]) return *known;
  const std::lock_guard<std::mutex> lock(loading);
  if (Device* known = devices[device]) return *known;
  watch_forks();
  auto* loaded = new Device(load(device));  // for the life of the process
  devices[device] = loaded;
  return *loaded;
}

const Module& module_of(int device) {
  return find_or_load(device, load_if_torch_has).module;
}

}  // namespace

Device& device_of(Queue queue) {
  return find_or_load(queue.device, load_on);
}

void* function_of(Device& device, Kernel kernel) {
  std::atomic<void*>& function = device.functions[index_of(kernel)];
  if (void* known = function) return known;
  const std::lock_guard<std::mutex> lock(loading);
  if (function == nullptr) function = load_kernel(driver(), device.module, kernel);
  return function;
}

bool forced_aten() {
  return choice() == Choice::kAten;
}

Backend backend(int device) {
  return module_of(device).backend;
}

int compute_capability(int device) {
  return module_of(device).capability;
}

std::string backend_reason(int device) {
  return module_of(device).reason;
}

}  // namespace torchamp::cuda
