// Measures the startup time of a process until its first step of Adam at O2, without a card:
// selecting the NVRTC backend and loading two kernels.
//
//     TORCHAMP_KERNELS=nvrtc first_launches [capability]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "cuda/image_store.h"
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
  driver.primary_context_release = [](int) { return 0; };
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

bool is_nvrtc_loaded() {
  return !loaded_library("libnvrtc").empty();
}

size_t count_stored_images() {
  namespace fs = std::filesystem;
  const fs::path folder = image_store().folder();
  if (!fs::exists(folder)) return 0;
  const fs::recursive_directory_iterator files(folder);
  return std::count_if(begin(files), end(files), [](const auto& f) { return f.is_regular_file(); });
}

void load_first_kernels() {
  static const Driver driver = make_driver();
  use_driver(driver);
  const bool is_from_torch = is_nvrtc_loaded();
  const size_t stored_before = count_stored_images();
  const auto begin = std::chrono::steady_clock::now();
  Device& device = device_of(Queue{0, nullptr});
  for (const Function function : {Function::kCheck, Function::kStepAdam}) {
    function_of(device, {function});
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  const char* nvrtc = is_from_torch       ? "loaded by torch"
                      : is_nvrtc_loaded() ? "opened"
                                          : "not opened";
  std::printf("%.1f ms, NVRTC %s, %zu images stored\n", took.count(), nvrtc,
              count_stored_images() - stored_before);
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
