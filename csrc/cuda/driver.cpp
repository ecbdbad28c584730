#include "cuda/driver.h"

#include "cuda/library.h"

namespace torchamp::cuda {
namespace {

constexpr int kRelaxed = 2;      // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

const Driver* fake_driver = nullptr;

Driver open_driver() {
  const Library cuda("libcuda.so.1");
  Driver driver{};
  cuda.find("cuInit", driver.init);
  cuda.find("cuDriverGetVersion", driver.driver_version);
  cuda.find("cuDeviceGet", driver.device_get);
  cuda.find("cuDeviceGetAttribute", driver.device_attribute);
  cuda.find("cuDevicePrimaryCtxRetain", driver.primary_context_retain);
  cuda.find("cuDevicePrimaryCtxRelease_v2", driver.primary_context_release);
  cuda.find("cuCtxPushCurrent_v2", driver.context_push);
  cuda.find("cuCtxPopCurrent_v2", driver.context_pop);
  cuda.find("cuModuleLoadData", driver.module_load);
  cuda.find("cuModuleUnload", driver.module_unload);
  cuda.find("cuModuleGetFunction", driver.module_function);
  cuda.find_optional("cuFuncLoad", driver.function_load);
  cuda.find("cuLaunchKernel", driver.launch_kernel);
  cuda.find("cuStreamIsCapturing", driver.stream_is_capturing);
  cuda.find("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode);
  cuda.find("cuGetErrorName", driver.error_name);
  require(driver, driver.init(0), "initialising the CUDA driver");
  return driver;
}

}  // namespace

const Driver& driver() {
  if (fake_driver != nullptr) return *fake_driver;
  static const Driver driver = open_driver();
  return driver;
}

void use_driver(const Driver& fake) {
  fake_driver = &fake;
}

void require(const Driver& driver, int code, const std::string& action) {
  if (code == 0) return;
  if (code == kOutOfMemory) {
    throw OutOfMemory(action +
                      " failed: CUDA out of memory. torch.cuda.empty_cache() frees what "
                      "torch keeps unused");
  }
  const char* name = nullptr;
  if (driver.error_name(code, &name) != 0 || name == nullptr) name = "unknown error";
  throw std::runtime_error(action + " failed: " + name + " (" + std::to_string(code) + ")");
}

PrimaryContext::PrimaryContext(const Driver& driver, int ordinal) : driver_(driver) {
  require(driver, driver.device_get(&device_, ordinal), "opening the device");
  require(driver, driver.primary_context_retain(&context_, device_), "retaining the context");
}

PrimaryContext::~PrimaryContext() {
  driver_.primary_context_release(device_);
}

ContextScope::ContextScope(const Driver& driver, void* context) : driver_(driver) {
  require(driver, driver.context_push(context), "making the device's context current");
}

ContextScope::~ContextScope() {
  void* popped = nullptr;
  driver_.context_pop(&popped);
}

RelaxedCaptureScope::RelaxedCaptureScope(const Driver& driver) : driver_(driver), mode_(kRelaxed) {
  require(driver, driver.exchange_capture_mode(&mode_), "relaxing the thread's capture mode");
}

RelaxedCaptureScope::~RelaxedCaptureScope() {
  driver_.exchange_capture_mode(&mode_);
}

}  // namespace torchamp::cuda
