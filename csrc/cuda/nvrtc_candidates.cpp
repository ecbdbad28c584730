#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "cuda/library.h"
#include "cuda/nvrtc.h"

namespace torchamp::cuda {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<std::string>;

bool is_nvrtc(const std::string& name) {
  const bool builtins = name.find("builtins") != std::string::npos;
  return !builtins && (name.rfind("libnvrtc.so", 0) == 0 || name.rfind("libnvrtc-", 0) == 0);
}

void append_nvrtc_in(const fs::path& folder, Paths& paths) {
  std::error_code ignored;
  for (const auto& file : fs::directory_iterator(folder, ignored)) {
    if (is_nvrtc(file.path().filename().string())) paths.push_back(file.path().string());
  }
}

void append_loaded(Paths& paths) {
  for (const char* prefix : {"libnvrtc.so", "libnvrtc-"}) {
    const std::string path = loaded_library(prefix);
    if (is_nvrtc(path.substr(path.rfind('/') + 1))) paths.push_back(path);
  }
}

/// torch's own folder, as in a LibTorch archive, and those of its companion packages, as pip lays
/// them.
void append_beside_torch(Paths& paths) {
  for (const char* prefix : {"libtorch_cuda.so", "libtorch_cpu.so"}) {
    const std::string torch = loaded_library(prefix);
    if (torch.empty()) continue;
    const fs::path folder = folder_of(torch);
    append_nvrtc_in(folder, paths);
    std::error_code ignored;
    for (const auto& package : fs::directory_iterator(folder / "../../nvidia", ignored)) {
      append_nvrtc_in(package.path() / "lib", paths);
    }
  }
}

/// A toolkit's folders for this processor's libraries: NVIDIA's installers have lib64, a link to
/// the folder in targets, conda's packages the others. sbsa: servers on ARM; aarch64: Jetson.
#if defined(__aarch64__)
constexpr const char* kToolkitFolders[] = {"lib64", "lib", "targets/sbsa-linux/lib",
                                           "targets/aarch64-linux/lib"};
#else
constexpr const char* kToolkitFolders[] = {"lib64", "lib", "targets/x86_64-linux/lib"};
#endif

void append_toolkit(const fs::path& home, Paths& paths) {
  for (const char* folder : kToolkitFolders) append_nvrtc_in(home / folder, paths);
}

void append_toolkits(Paths& paths) {
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* home = std::getenv(variable)) append_toolkit(home, paths);
  }
  append_toolkit("/usr/local/cuda", paths);
}

/// Empty if there is no such file. Only the linker can resolve a bare name.
std::string identity_of(const std::string& path) {
  struct stat file {};
  if (path.find('/') == std::string::npos || stat(path.c_str(), &file) != 0) return "";
  return fs::canonical(path).string() + ' ' + std::to_string(file.st_size) + ' ' +
         std::to_string(file.st_mtime);
}

std::string find_identity() {
  for (const std::string& path : nvrtc_candidates()) {
    const std::string identity = identity_of(path);
    if (!identity.empty()) return identity;
    if (path.find('/') == std::string::npos) break;
  }
  return Nvrtc::instance().path() + ' ' + Nvrtc::instance().version();
}

}  // namespace

Paths nvrtc_candidates() {
  if (const char* chosen = std::getenv("TORCHAMP_NVRTC")) return {chosen};
  Paths paths;
  append_loaded(paths);
  append_beside_torch(paths);
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"})
    paths.push_back(name);
  append_toolkits(paths);
  return paths;
}

const std::string& nvrtc_identity() {
  static const auto& identity = *new std::string(find_identity());
  return identity;
}

}  // namespace torchamp::cuda
