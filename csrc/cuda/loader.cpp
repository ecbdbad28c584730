#include "cuda/loader.h"

#include <cstdlib>
#include <stdexcept>

#include "cuda/embedded.h"
#include "cuda/nvrtc.h"

namespace torchamp::cuda {
namespace {

// Numbers of the driver's CUdevice_attribute.
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;

// What a parameter of 32 KB asks for.
constexpr int kOldestDriver = 12010;
constexpr int kOldestCapability = 70;

struct Device {
  void* context;
  int capability;  ///< 10 · major + minor
};

std::string dotted(int major, int minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

std::string capability_of(const Device& device) {
  return dotted(device.capability / 10, device.capability % 10);
}

void require_driver(const Driver& driver) {
  int version = 0;
  require(driver, driver.driver_version(&version), "reading the driver's version");
  if (version >= kOldestDriver) return;
  throw std::runtime_error("the driver supports CUDA " +
                           dotted(version / 1000, version % 1000 / 10) + ", the kernels need 12.1");
}

Device open_device(const Driver& driver, int ordinal) {
  require_driver(driver);
  int handle = 0, major = 0, minor = 0;
  require(driver, driver.device_get(&handle, ordinal), "opening the device");
  require(driver, driver.device_attribute(&major, kCapabilityMajor, handle), "reading the device");
  require(driver, driver.device_attribute(&minor, kCapabilityMinor, handle), "reading the device");
  Device device{nullptr, 10 * major + minor};
  if (device.capability < kOldestCapability) {
    throw std::runtime_error("the device has compute capability " + capability_of(device) +
                             ", the kernels need 7.0");
  }
  require(driver, driver.primary_context_retain(&device.context, handle), "retaining the context");
  return device;
}

KernelFunctions functions_of(const Driver& driver, void* module) {
  KernelFunctions functions{};
  for (int i = 0; i < kKernels; ++i) {
    require(driver, driver.module_function(&functions[i], module, kKernelNames[i]),
            std::string("finding ") + kKernelNames[i]);
    if (driver.function_load == nullptr) continue;
    require(driver, driver.function_load(functions[i]), std::string("loading ") + kKernelNames[i]);
  }
  return functions;
}

KernelFunctions load_image(const Driver& driver, const Device& device, const void* image) {
  const ContextScope current(driver, device.context);
  const RelaxedCaptureScope relaxed(driver);
  void* module = nullptr;
  require(driver, driver.module_load(&module, image), "loading the kernels");
  try {
    return functions_of(driver, module);
  } catch (...) {
    driver.module_unload(module);
    throw;
  }
}

KernelFunctions load_fatbin(const Driver& driver, const Device& device) {
  const EmbeddedImage image = embedded_fatbin();
  if (image.size == 0) throw std::runtime_error("torchamp was built without nvcc");
  return load_image(driver, device, image.data);
}

KernelFunctions load_nvrtc(const Driver& driver, const Device& device) {
  const Nvrtc& nvrtc = Nvrtc::instance();
  const std::string target = target_for(device.capability, nvrtc.architectures());
  if (target.empty()) {
    throw std::runtime_error("NVRTC " + nvrtc.version() + " does not know compute capability " +
                             capability_of(device));
  }
  return load_image(driver, device, nvrtc.compile(embedded_sources(), target).data());
}

KernelFunctions load_rung(const Driver& driver, const Device& device, Rung rung) {
  return rung == Rung::kFatbin ? load_fatbin(driver, device) : load_nvrtc(driver, device);
}

bool allows(Choice choice, Rung rung) {
  return choice == Choice::kAuto || (choice == Choice::kAot && rung == Rung::kFatbin) ||
         (choice == Choice::kNvrtc && rung == Rung::kNvrtc);
}

void append_reason(Module& module, const std::string& subject, const std::exception& error) {
  if (!module.reason.empty()) module.reason += "\n";
  module.reason += subject + ": " + error.what();
}

Module climb_down(const Driver& driver, int ordinal, Choice choice) {
  Module module;
  try {
    const Device device = open_device(driver, ordinal);
    module.context = device.context;
    for (const Rung rung : {Rung::kFatbin, Rung::kNvrtc}) {
      if (!allows(choice, rung)) continue;
      try {
        module.functions = load_rung(driver, device, rung);
        module.rung = rung;
        return module;
      } catch (const std::runtime_error& error) {
        append_reason(module, name(rung), error);
      }
    }
  } catch (const std::runtime_error& error) {
    append_reason(module, "device " + std::to_string(ordinal), error);
  }
  return module;
}

}  // namespace

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

Module aten_module(const std::string& reason) {
  Module module;
  module.reason = reason;
  return module;
}

Module load_module(const Driver& driver, int device, Choice choice) {
  if (choice == Choice::kAten) return aten_module("TORCHAMP_KERNELS=aten");
  Module module = climb_down(driver, device, choice);
  if (module.rung == Rung::kAten && choice != Choice::kAuto) {
    throw std::runtime_error(
        "TORCHAMP_KERNELS asks for kernels that cannot be had on CUDA device " +
        std::to_string(device) + ": " + module.reason);
  }
  return module;
}

}  // namespace torchamp::cuda
