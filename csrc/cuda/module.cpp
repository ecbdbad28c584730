#include "cuda/module.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <stdexcept>

#include "cuda/registry.h"
#include "cuda/stream.h"

namespace torchamp::cuda {
namespace {

constexpr int kMaxDevices = 64;

std::array<std::atomic<const Module*>, kMaxDevices> modules{};
std::mutex loading;
std::atomic<bool> forked{false};

void watch_forks() {
  static const int failure = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  if (failure != 0) throw std::runtime_error("pthread_atfork failed");
}

std::string device_name(int device) {
  return "CUDA device " + std::to_string(device);
}

void require_usable(int device) {
  if (device < 0 || device >= kMaxDevices) {
    throw std::runtime_error("expected a CUDA device from 0 to 63, got " + std::to_string(device));
  }
  if (forked) {
    throw std::runtime_error(
        "torchamp's CUDA kernels were loaded before this process was forked and cannot be used in "
        "it: start processes by the 'spawn' method");
  }
}

void require_no_capture(Queue queue) {
  if (!is_capturing(queue)) return;
  throw std::runtime_error(
      "the kernels of " + device_name(queue.device) +
      " cannot be loaded while a CUDA graph is captured: run the op once before");
}

void announce(int device, const Module& module) {
  if (module.rung != Rung::kAten || module.context == nullptr) return;
  std::fprintf(stderr, "torchamp: no kernels for %s, ATen's are used instead (%s)\n",
               device_name(device).c_str(), module.reason.c_str());
}

Module load_on(Queue queue) {
  if (forced_aten()) return load_module(Driver{}, queue.device, Choice::kAten);
  const Driver& cuda = driver();
  require_no_capture(queue);
  return load_module(cuda, queue.device, choice());
}

Module load_on_current_stream(int device) {
  Queue queue{device, nullptr};
  try {
    if (!forced_aten()) queue = current_queue(device);
  } catch (const std::runtime_error& error) {
    if (choice() != Choice::kAuto) throw;
    return aten_module(error.what());
  }
  return load_on(queue);
}

template <class Load>
const Module& find_or_load(int device, Load load) {
  require_usable(device);
  if (const Module* known = modules[device]) return *known;
  const std::lock_guard<std::mutex> lock(loading);
  if (const Module* known = modules[device]) return *known;
  watch_forks();
  const auto* loaded = new Module(load());  // for the life of the process
  announce(device, *loaded);
  modules[device] = loaded;
  return *loaded;
}

const Module& module_of(int device) {
  return find_or_load(device, [=] { return load_on_current_stream(device); });
}

}  // namespace

const Module& module_of(Queue queue) {
  return find_or_load(queue.device, [=] { return load_on(queue); });
}

const char* name(Rung rung) {
  if (rung == Rung::kFatbin) return "fatbin";
  return rung == Rung::kNvrtc ? "nvrtc" : "aten";
}

bool forced_aten() {
  return choice() == Choice::kAten;
}

void load(int device) {
  module_of(device);
}

Rung rung(int device) {
  return module_of(device).rung;
}

std::string rung_reason(int device) {
  return module_of(device).reason;
}

}  // namespace torchamp::cuda
