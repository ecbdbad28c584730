#include "cuda/loader.h"

#include <cstdlib>
#include <stdexcept>

#include "cuda/embedded.h"
#include "cuda/images.h"

namespace torchamp::cuda {
namespace {

// Numbers of the driver's CUdevice_attribute.
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

/// The first whose kernels take 32 KB of parameters.
constexpr int kOldestDriver = 12010;

std::string dotted(int major, int minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

void require_driver(const Driver& driver) {
  int version = 0;
  require(driver, driver.driver_version(&version), "reading the driver's version");
  if (version >= kOldestDriver) return;
  throw std::runtime_error("the driver supports CUDA " +
                           dotted(version / 1000, version % 1000 / 10) +
                           ", the kernels need 12.1; update the driver");
}

void open_device(const Driver& driver, int ordinal, Module& module) {
  module.capability = capability_of(driver, ordinal);
  if (module.capability < kOldestCapability) {
    throw std::runtime_error("the device has compute capability " +
                             dotted(module.capability / 10, module.capability % 10) +
                             ", the kernels need 7.0");
  }
  require_driver(driver);
  module.context = std::make_unique<const PrimaryContext>(driver, ordinal);
}

/// The state in which the calling thread can load kernels.
struct LoadingScope {
  LoadingScope(const Driver& driver, const Module& module)
      : current(driver, module.context->handle()), relaxed(driver) {}
  const ContextScope current;
  const RelaxedCaptureScope relaxed;
};

void* load_image(const Driver& driver, const void* image) {
  void* loaded = nullptr;
  require(driver, driver.module_load(&loaded, image), "loading the kernels");
  return loaded;
}

void* find_function(const Driver& driver, void* image, const std::string& name) {
  void* function = nullptr;
  require(driver, driver.module_function(&function, image, name.c_str()), "finding " + name);
  if (driver.function_load != nullptr) {
    require(driver, driver.function_load(function), "loading " + name);
  }
  return function;
}

void load_fatbin(const Driver& driver, Module& module) {
  const EmbeddedImage image = embedded_fatbin();
  if (image.size == 0) throw std::runtime_error("torchamp was built without nvcc");
  const LoadingScope scope(driver, module);
  module.fatbin = load_image(driver, image.data);
}

void try_nvrtc(const Driver& driver, const Module& module) {
  const std::string& image = trial_image(module.capability);
  const LoadingScope scope(driver, module);
  driver.module_unload(load_image(driver, image.data()));
}

void load_backend(const Driver& driver, Module& module, Backend backend) {
  backend == Backend::kFatbin ? load_fatbin(driver, module) : try_nvrtc(driver, module);
  module.backend = backend;
}

bool allows(Choice choice, Backend backend) {
  return choice == Choice::kAuto || (choice == Choice::kAot && backend == Backend::kFatbin) ||
         (choice == Choice::kNvrtc && backend == Backend::kNvrtc);
}

/// Whether `attempt` succeeds. A full memory is no reason to do without kernels.
template <class Attempt>
bool succeeds(Module& module, const std::string& subject, Attempt attempt) {
  try {
    attempt();
    return true;
  } catch (const OutOfMemory&) {
    throw;
  } catch (const std::runtime_error& error) {
    if (!module.reason.empty()) module.reason += "\n";
    module.reason += subject + ": " + error.what();
    return false;
  }
}

Module choose_backend(const Driver& driver, int ordinal, Choice choice) {
  Module module;
  const auto open = [&] { open_device(driver, ordinal, module); };
  if (!succeeds(module, "device " + std::to_string(ordinal), open)) return module;
  for (const Backend backend : {Backend::kFatbin, Backend::kNvrtc}) {
    const auto load = [&] { load_backend(driver, module, backend); };
    if (allows(choice, backend) && succeeds(module, name(backend), load)) return module;
  }
  module.context.reset();
  return module;
}

}  // namespace

const char* name(Backend backend) {
  if (backend == Backend::kFatbin) return "fatbin";
  return backend == Backend::kNvrtc ? "nvrtc" : "aten";
}

Choice parse_choice(const char* value) {
  const std::string text = value == nullptr ? "" : value;
  if (text.empty() || text == "auto") return Choice::kAuto;
  if (text == "aot") return Choice::kAot;
  if (text == "nvrtc") return Choice::kNvrtc;
  if (text == "aten") return Choice::kAten;
  throw std::runtime_error("TORCHAMP_KERNELS: expected auto, aot, nvrtc or aten, got " + text);
}

Choice choice() {
  static const Choice choice = parse_choice(std::getenv("TORCHAMP_KERNELS"));
  return choice;
}

int capability_of(const Driver& driver, int ordinal) {
  int handle = 0, major = 0, minor = 0;
  require(driver, driver.device_get(&handle, ordinal), "opening the device");
  require(driver, driver.device_attribute(&major, kCapabilityMajor, handle), "reading the device");
  require(driver, driver.device_attribute(&minor, kCapabilityMinor, handle), "reading the device");
  return 10 * major + minor;
}

Module aten_module(const std::string& reason) {
  Module module;
  module.reason = reason;
  return module;
}

Module load_module(const Driver& driver, int device, Choice choice) {
  if (choice == Choice::kAten) return aten_module("TORCHAMP_KERNELS=aten");
  Module module = choose_backend(driver, device, choice);
  if (module.backend == Backend::kAten && choice != Choice::kAuto) {
    throw std::runtime_error(
        "TORCHAMP_KERNELS requests kernels that are unavailable on CUDA device " +
        std::to_string(device) + ": " + module.reason);
  }
  return module;
}

void* load_kernel(const Driver& driver, const Module& module, Kernel kernel) {
  if (module.backend == Backend::kFatbin) {
    const LoadingScope scope(driver, module);
    return find_function(driver, module.fatbin, name(kernel));
  }
  const std::string& image = image_of(kernel, module.capability);
  const LoadingScope scope(driver, module);
  void* const loaded = load_image(driver, image.data());
  try {
    return find_function(driver, loaded, name(kernel));
  } catch (...) {
    driver.module_unload(loaded);
    throw;
  }
}

}  // namespace torchamp::cuda
