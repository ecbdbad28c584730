#include "driver.h"

#include <cstring>
#include <string>
#include <vector>

#include "cuda/embedded.h"
#include "kernel_program.h"
#include "scheduler.h"

namespace torchamp::cuda {

// Replaces the generated sources: something to pass to module_load.
EmbeddedImage embedded_fatbin() {
  static const unsigned char image[] = {0};
  return {image, sizeof(image)};
}

const std::vector<EmbeddedFile>& embedded_sources() {
  static const std::vector<EmbeddedFile> none;
  return none;
}

}  // namespace torchamp::cuda

namespace emulation {
namespace {

constexpr int kInvalidContext = 201;
constexpr int kNotFound = 500;
constexpr int kCapabilityMajor = 75;

int token = 0;  // represents the context and the module
std::vector<void*> contexts;
int launch_count = 0;
std::string last_kernel;

int succeed() {
  return 0;
}

int device_attribute(int* value, int attribute, int) {
  *value = attribute == kCapabilityMajor ? 9 : 0;
  return 0;
}

int module_function(void** function, void*, const char* name) {
  const Kernel* kernel = find_kernel(name);
  *function = const_cast<Kernel*>(kernel);
  return kernel == nullptr ? kNotFound : 0;
}

int launch_kernel(void* function, unsigned grid_x, unsigned, unsigned, unsigned block_x, unsigned,
                  unsigned, unsigned, void*, void** parameters, void**) {
  if (contexts.empty() || contexts.back() != &token) return kInvalidContext;
  ++launch_count;
  last_kernel = static_cast<Kernel*>(function)->name;
  run_grid(grid_x, block_x, static_cast<Kernel*>(function)->body, parameters[0]);
  return 0;
}

int error_name(int, const char** name) {
  *name = "EMULATED_ERROR";
  return 0;
}

torchamp::cuda::Driver make_driver() {
  torchamp::cuda::Driver driver{};
  driver.init = [](unsigned) { return succeed(); };
  driver.driver_version = [](int* version) { return *version = 13000, succeed(); };
  driver.device_get = [](int* device, int ordinal) { return *device = ordinal, succeed(); };
  driver.device_attribute = device_attribute;
  driver.primary_context_retain = [](void** context, int) { return *context = &token, succeed(); };
  driver.context_push = [](void* context) { return contexts.push_back(context), succeed(); };
  driver.context_pop = [](void** context) {
    *context = contexts.back();
    return contexts.pop_back(), succeed();
  };
  driver.module_load = [](void** module, const void*) { return *module = &token, succeed(); };
  driver.module_unload = [](void*) { return succeed(); };
  driver.module_function = module_function;
  driver.launch_kernel = launch_kernel;
  driver.stream_is_capturing = [](void*, int* status) { return *status = 0, succeed(); };
  driver.exchange_capture_mode = [](int*) { return succeed(); };
  driver.error_name = error_name;
  return driver;
}

}  // namespace

const torchamp::cuda::Driver& driver() {
  static const torchamp::cuda::Driver driver = make_driver();
  return driver;
}

int launches() {
  return launch_count;
}

std::string last_launched() {
  return last_kernel;
}

}  // namespace emulation
