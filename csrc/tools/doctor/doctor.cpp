#include "doctor/doctor.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torchamp/build_info.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cuda/driver.h"
#include "cuda/library.h"
#include "cuda/loader.h"
#include "cuda/nvrtc.h"
#include "doctor/diagnostics.h"

namespace torchamp {
namespace {

namespace fs = std::filesystem;

/// "2.13" of "2.13.0+cpu".
std::string minor_of(const std::string& version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

/// The version in a LibTorch folder's build-version, or in a wheel's version.py; empty if neither
/// is there.
std::string version_in(const fs::path& torch) {
  std::string line;
  std::ifstream archive(torch / "build-version");
  if (std::getline(archive, line)) return line;
  std::ifstream wheel(torch / "version.py");
  while (std::getline(wheel, line)) {
    if (line.rfind("__version__", 0) != 0) continue;
    const auto begin = line.find_first_of("'\"", line.find('='));
    return line.substr(begin + 1, line.find_last_of("'\"") - begin - 1);
  }
  return "";
}

Diagnostic find_torch() {
  const std::string library = cuda::loaded_library("libtorch_cpu.so");
  const fs::path torch = fs::path(library).parent_path().parent_path();
  const std::string version = version_in(torch), built_for = build_info().torch_version;
  const std::string cuda = at::hasCUDA() ? "with CUDA" : "without CUDA";
  const std::string found =
      (version.empty() ? "of unknown version" : version) + " (" + cuda + ") in " + torch.string();
  if (version.empty() || minor_of(version) == minor_of(built_for)) return {"torch", found};
  return {"torch", found + ", but torchamp was built for " + built_for, 2,
          "build torchamp again for this torch, or put torch " + minor_of(built_for) +
              " first on LD_LIBRARY_PATH"};
}

Diagnostic find_build() {
  const BuildInfo& info = build_info();
  return {"torchamp", info.version + " in " +
                          fs::path(cuda::loaded_library("libtorchamp.so"))
                              .parent_path()
                              .lexically_normal()
                              .string() +
                          ", built for torch " + info.torch_version + " by " + info.compiler +
                          " in C++" + std::to_string(info.cxx_standard) + "; nvcc: " + info.nvcc};
}

Diagnostic find_abi() {
  return {"C++ ABI", "_GLIBCXX_USE_CXX11_ABI=" + std::to_string(_GLIBCXX_USE_CXX11_ABI) +
                         ": your compiler must use the same; the CMake package and "
                         "pkg-config set it"};
}

/// The processor's units for products of 16 bits, by Linux's names, as "avx512_bf16".
std::string units_for_16_bits() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, units;
  while (std::getline(file, line)) {
    if (line.rfind("flags", 0) != 0 && line.rfind("Features", 0) != 0) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      const bool is_unit = word == "avx512_bf16" || word == "avx512_fp16" || word == "amx_bf16" ||
                           word == "amx_fp16" || word == "bf16" || word == "svebf16";
      if (is_unit) units += (units.empty() ? "" : ", ") + word;
    }
    break;
  }
  return units.empty() ? "none" : units;
}

Diagnostic find_processor() {
  return {"processor", at::get_cpu_capability() + ", " + std::to_string(at::get_num_threads()) +
                           " threads; units for products of 16 bits: " + units_for_16_bits()};
}

Diagnostic find_driver() {
  try {
    int version = 0;
    const cuda::Driver& driver = cuda::driver();
    cuda::require(driver, driver.driver_version(&version), "querying the driver's version");
    const std::string found = "supports CUDA " + std::to_string(version / 1000) + "." +
                              std::to_string(version % 1000 / 10);
    if (at::hasCUDA()) return {"CUDA driver", found};
    return {"CUDA driver", found + ", but this torch was built without CUDA", 1,
            "install a torch with CUDA, to use the GPU"};
  } catch (const std::exception& error) {
    return {"CUDA driver", std::string("none; torchamp works on the CPU (") + error.what() + ")"};
  }
}

int device_count() {
  const bool has_guard = c10::impl::hasDeviceGuardImpl(at::kCUDA);
  return has_guard ? c10::impl::getDeviceGuardImpl(at::kCUDA)->deviceCount() : 0;
}

bool needs_nvrtc() {
  return device_count() > 0 && build_info().fatbin.empty();
}

Diagnostic find_nvrtc() {
  try {
    return nvrtc_diagnostic(cuda::Nvrtc::instance());
  } catch (const std::exception& error) {
    const bool is_missed = needs_nvrtc();
    return {"NVRTC", std::string("none: ") + error.what(), is_missed ? 1 : 0,
            is_missed ? "point TORCHAMP_NVRTC to a libnvrtc.so.13 or .12, or build torchamp with "
                        "nvcc"
                      : ""};
  }
}

/// What torch has loaded; a torch that has cuBLAS inside of its own library names none.
Diagnostic find_cublas() {
  const std::string path = cuda::loaded_library("libcublas.so");
  if (path.empty()) return {"cuBLAS", "none is loaded"};
  try {
    int (*get_property)(int which, int* value) = nullptr;
    cuda::Library(path).find("cublasGetProperty", get_property);
    int numbers[3] = {};
    for (int which = 0; which < 3; ++which) get_property(which, &numbers[which]);
    const auto [major, minor, patch] = numbers;
    return {"cuBLAS", std::to_string(major) + "." + std::to_string(minor) + "." +
                          std::to_string(patch) + " in " + path};
  } catch (const std::exception& error) {
    return {"cuBLAS", std::string("of unknown version: ") + error.what()};
  }
}

Diagnostic find_float8(c10::Device device) {
  const auto product = c10::Dispatcher::singleton().findSchema({"aten::_scaled_mm", ""});
  const bool is_in_torch = product && product->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  try {
    const int capability = cuda::capability_of(cuda::driver(), device.index());
    return float8_diagnostic(device.str(), capability, is_in_torch);
  } catch (const std::exception& error) {
    return {"float8 products on " + device.str(), std::string("unknown: ") + error.what()};
  }
}

Diagnostic find_kernels(c10::Device device) {
  try {
    return kernels_diagnostic(device.str(), backend(device));
  } catch (const std::exception& error) {
    return {"kernels on " + device.str(), std::string("unavailable: ") + error.what(), 2,
            "TORCHAMP_KERNELS=auto selects the best available"};
  }
}

Diagnostic find_variable() {
  const char* value = std::getenv("TORCHAMP_KERNELS");
  return {"TORCHAMP_KERNELS", value == nullptr ? "not set: auto" : value};
}

}  // namespace

Diagnostic kernels_diagnostic(const std::string& device, const Backend& backend) {
  const std::string note = backend.reason.empty() ? "" : " (" + backend.reason + ")";
  return {"kernels on " + device, backend.name + note, backend.name == "aten" ? 1 : 0};
}

Diagnostic float8_diagnostic(const std::string& device, int capability, bool is_in_torch) {
  const std::string subject = "float8 products on " + device;
  if (!is_in_torch) return {subject, "none: this torch has no _scaled_mm for CUDA"};
  if (capability >= detail::kFloat8Capability) return {subject, "torch has them"};
  return {subject, "none: they need sm_89 or newer, and this is sm_" + std::to_string(capability)};
}

Diagnostic nvrtc_diagnostic(const cuda::Nvrtc& nvrtc) {
  const std::string name = nvrtc.version() + " in " + nvrtc.path();
  const std::vector<int> architectures = nvrtc.architectures();
  try {
    if (architectures.empty()) throw std::runtime_error("it names no architecture");
    nvrtc.compile(
        {{{"doctor.cu", "extern \"C\" __global__ void doctor() {}"}}, cuda::nvrtc_options()},
        "sm_" + std::to_string(architectures.back()));
    return {"NVRTC", name + ", compiles for sm_" + std::to_string(architectures.front()) +
                         " to sm_" + std::to_string(architectures.back())};
  } catch (const std::exception& error) {
    std::string reason = error.what();
    reason = reason.substr(0, reason.find('\n'));
    return {"NVRTC", name + ", which does not compile: " + reason, 1,
            "install NVRTC again, or point TORCHAMP_NVRTC to another libnvrtc.so.13 or .12"};
  }
}

Diagnostic store_diagnostic(const cuda::ImageStore& store, bool is_missed) {
  const std::string refusal = store.refusal();
  if (refusal.empty()) return {"kernel cache", store.folder()};
  if (store.folder().empty()) return {"kernel cache", "none"};
  return {"kernel cache", "none: " + store.folder() + " is " + refusal, is_missed ? 1 : 0,
          "set TORCHAMP_CACHE to a folder that you own, with mode 700"};
}

std::vector<Diagnostic> examine() {
  std::vector<Diagnostic> findings{find_build(),  find_torch(), find_abi(),   find_processor(),
                                   find_driver(), find_nvrtc(), find_cublas()};
  findings.push_back(store_diagnostic(cuda::image_store(), needs_nvrtc()));
  findings.push_back(find_variable());
  findings.push_back(find_kernels(at::kCPU));
  for (int i = 0; i < device_count(); ++i) {
    const c10::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(i));
    findings.push_back(find_kernels(device));
    findings.push_back(find_float8(device));
  }
  return findings;
}

}  // namespace torchamp
