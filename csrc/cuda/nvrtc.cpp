#include "cuda/nvrtc.h"

#include <dlfcn.h>
#include <locale.h>

#include <memory>

#include "cuda/library.h"

namespace torchamp::cuda {
namespace {

NvrtcFunctions open_functions(const std::string& path) {
  const Library nvrtc(path);
  NvrtcFunctions functions{};
  nvrtc.find("nvrtcVersion", functions.version);
  nvrtc.find("nvrtcGetNumSupportedArchs", functions.supported_count);
  nvrtc.find("nvrtcGetSupportedArchs", functions.supported);
  nvrtc.find("nvrtcCreateProgram", functions.create);
  nvrtc.find("nvrtcDestroyProgram", functions.destroy);
  nvrtc.find("nvrtcCompileProgram", functions.compile);
  nvrtc.find("nvrtcGetProgramLogSize", functions.log_size);
  nvrtc.find("nvrtcGetProgramLog", functions.log);
  nvrtc.find("nvrtcGetCUBINSize", functions.cubin_size);
  nvrtc.find("nvrtcGetCUBIN", functions.cubin);
  nvrtc.find("nvrtcGetPTXSize", functions.ptx_size);
  nvrtc.find("nvrtcGetPTX", functions.ptx);
  return functions;
}

using GetSize = int(void* program, std::size_t* size);
using GetBytes = int(void* program, char* bytes);

std::string output_of(void* program, GetSize* get_size, GetBytes* get_bytes) {
  std::size_t size = 0;
  if (get_size(program, &size) != 0) return "";
  std::string bytes(size, '\0');
  return get_bytes(program, &bytes[0]) == 0 ? bytes : "";
}

/// NVRTC of CUDA 12.4 leaves the thread in the C locale, in which Python before 3.15 opens files as
/// ASCII.
class KeptLocale {
 public:
  KeptLocale() = default;
  ~KeptLocale() { uselocale(before_); }
  KeptLocale(const KeptLocale&) = delete;
  KeptLocale& operator=(const KeptLocale&) = delete;

 private:
  const locale_t before_ = uselocale(nullptr);
};

/// Owns an NVRTC program.
class Compilation {
 public:
  Compilation(const NvrtcFunctions& functions, const std::vector<EmbeddedFile>& sources)
      : functions_(functions) {
    std::vector<const char*> texts, names;
    for (std::size_t i = 1; i < sources.size(); ++i) {
      texts.push_back(sources[i].text);
      names.push_back(sources[i].name);
    }
    const int code = functions.create(&program_, sources.front().text, sources.front().name,
                                      static_cast<int>(names.size()), texts.data(), names.data());
    if (code != 0) throw std::runtime_error("nvrtcCreateProgram failed: " + std::to_string(code));
  }
  ~Compilation() { functions_.destroy(&program_); }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  void compile(const std::string& target, const std::vector<std::string>& options) {
    const std::string arch = "-arch=" + target;
    std::vector<const char*> given{arch.c_str()};
    for (const std::string& option : options) given.push_back(option.c_str());
    if (functions_.compile(program_, static_cast<int>(given.size()), given.data()) == 0) return;
    throw std::runtime_error(output_of(program_, functions_.log_size, functions_.log));
  }

  std::string cubin() const { return output_of(program_, functions_.cubin_size, functions_.cubin); }
  std::string ptx() const { return output_of(program_, functions_.ptx_size, functions_.ptx); }

 private:
  const NvrtcFunctions& functions_;
  void* program_ = nullptr;
};

std::unique_ptr<const Nvrtc> find_nvrtc() {
  std::string tried;
  for (const std::string& path : nvrtc_candidates()) {
    try {
      return std::make_unique<const Nvrtc>(path);
    } catch (const std::runtime_error& error) {
      tried += std::string("; ") + error.what();
    }
  }
  throw std::runtime_error("libnvrtc was not found" + tried);
}

}  // namespace

const std::vector<std::string>& nvrtc_options() {
  static const auto& options = *new std::vector<std::string>{"-std=c++17", "--fmad=false"};
  return options;
}

const Nvrtc& Nvrtc::instance() {
  static const Nvrtc* const nvrtc = find_nvrtc().release();
  return *nvrtc;
}

Nvrtc::Nvrtc(const std::string& path) : path_(path), functions_(open_functions(path)) {
  int major = 0, minor = 0;
  functions_.version(&major, &minor);
  version_ = std::to_string(major) + "." + std::to_string(minor);
  load_builtins(major, minor);
}

/// NVRTC opens its companion by bare name, which fails outside the linker's folders unless it is
/// loaded already.
void Nvrtc::load_builtins(int major, int minor) const {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(functions_.version), &info) == 0) return;
  const std::string suffix = std::to_string(major) + "." + std::to_string(minor);
  const std::string path = folder_of(info.dli_fname) + "/libnvrtc-builtins.so." + suffix;
  dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
}

std::vector<int> Nvrtc::architectures() const {
  int count = 0;
  if (functions_.supported_count(&count) != 0) return {};
  std::vector<int> architectures(count);
  if (functions_.supported(architectures.data()) != 0) return {};
  return architectures;
}

std::string Nvrtc::compile(const Program& program, const std::string& target) const {
  const KeptLocale kept_locale;
  Compilation compilation(functions_, program.sources);
  compilation.compile(target, program.options);
  return target.rfind("sm_", 0) == 0 ? compilation.cubin() : compilation.ptx();
}

std::string target_for(int capability, const std::vector<int>& architectures) {
  int newest = 0;
  for (int architecture : architectures) {
    if (architecture == capability) return "sm_" + std::to_string(capability);
    if (architecture < capability && architecture > newest) newest = architecture;
  }
  return newest == 0 ? "" : "compute_" + std::to_string(newest);
}

}  // namespace torchamp::cuda
