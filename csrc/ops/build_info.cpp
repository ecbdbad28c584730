#include <torchamp/build_info.h>

#include "build_config.h"
#include "cpu/isa.h"
#include "cuda/image_store.h"
#include "cuda/registry.h"

namespace torchamp {
namespace {

const char* cpu_backend() {
#if defined(TORCHAMP_AVX2)
  if (cpu::kHasAvx2) return "avx2";
#endif
#if defined(TORCHAMP_NEON)
  return "neon";
#else
  return "portable";
#endif
}

}  // namespace

const char detail::headers_0_1 = 0;

const BuildInfo& build_info() {
  static const auto& info =
      *new BuildInfo{TORCHAMP_VERSION,      TORCHAMP_TORCH_VERSION, TORCHAMP_COMPILER,
                     TORCHAMP_CXX_STANDARD, TORCHAMP_FATBIN_ARCHS,  TORCHAMP_NVCC};
  return info;
}

Backend backend(c10::Device device) {
  if (cuda::forced_aten()) return {"aten", "TORCHAMP_KERNELS is aten"};
  if (device.is_cpu()) return {cpu_backend(), ""};
  if (!device.is_cuda()) return {"aten", "torchamp has kernels for the CPU and for CUDA"};
  return {cuda::name(cuda::backend(device.index())), cuda::backend_reason(device.index())};
}

std::string kernel_cache() {
  return cuda::image_store().folder();
}

int detail::compute_capability(c10::Device device) {
  return cuda::compute_capability(device.index());
}

}  // namespace torchamp
