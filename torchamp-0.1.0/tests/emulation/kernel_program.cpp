#include "kernel_program.h"

#include "cuda/kernels.cu"

namespace emulation {
namespace {

using namespace torchamp;
using namespace torchamp::cuda;

#define TORCHAMP_ENTRY(Name, name, function, Parameter) \
  {"torchamp_" #name,                                   \
   [](void* parameter) { torchamp_##name(*static_cast<Parameter*>(parameter)); }},

const Kernel kKernels[] = {TORCHAMP_KERNELS(TORCHAMP_ENTRY)};

}  // namespace

const Kernel* find_kernel(const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, name) == 0) return &kernel;
  }
  return nullptr;
}

}  // namespace emulation
