// Measures the startup time of a process until its first step of Adam at O2, without a card:
// selecting the NVRTC backend and loading two kernels.
//
//     TORCHAMP_KERNELS=nvrtc first_launches [capability]
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "cuda/library.h"
#include "cuda/registry.h"

namespace torchamp::cuda {
namespace {

int capability = 90;
char handle;

Driver make_driver() {
  Driver driver{};
  driver.driver_version = [](int* version) { return *version = 13000, 0; };
  driver.device_get = [](int* device, int ordinal) { return *device = ordinal, 0; };
  driver.device_attribute = [](int* value, int attribute, int) {
    return *value = attribute == 75 ? capability / 10 : capability % 10, 0;
  };
  driver.primary_context_retain = [](void** context, int) { return *context = &handle, 0; };
  driver.context_push = [](void*) { return 0; };
  driver.context_pop = [](void**) { return 0; };
  driver.module_load = [](void** module, const void*) { return *module = &handle, 0; };
  driver.module_unload = [](void*) { return 0; };
  driver.module_function = [](void** function, void*, const char*) {
    return *function = &handle, 0;
  };
  driver.exchange_capture_mode = [](int*) { return 0; };
  driver.error_name = [](int, const char**) { return 1; };
  return driver;
}

void load_first_kernels() {
  static const Driver driver = make_driver();
  use_driver(driver);
  const auto begin = std::chrono::steady_clock::now();
  Device& device = device_of(Queue{0, nullptr});
  for (const Kernel kernel : {Kernel::kCheck, Kernel::kStepAdam}) function_of(device, kernel);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  const bool opened = !loaded_library("libnvrtc").empty();
  std::printf("%.1f ms, NVRTC %s\n", took.count(), opened ? "opened" : "not opened");
}

}  // namespace
}  // namespace torchamp::cuda

int main(int count, char** arguments) try {
  if (count > 1) torchamp::cuda::capability = std::atoi(arguments[1]);
  torchamp::cuda::load_first_kernels();
} catch (const std::exception& error) {
  std::printf("the kernels are not compiled by NVRTC here: %s\n", error.what());
  return 1;
}
