#include "kernel_program.h"

#include "cuda/kernels.cu"

namespace emulation {
namespace {

using namespace torchamp;
using namespace torchamp::cuda;

#define TORCHAMP_TABLE_ENTRY(Name, name, Arguments) \
  {"torchamp_" #name,                               \
   [](void* parameter) { torchamp_##name(*static_cast<Launch<Arguments>*>(parameter)); }},
#define TORCHAMP_PLAIN_ENTRY(Name, name, Arguments) \
  {"torchamp_" #name,                               \
   [](void* parameter) { torchamp_##name(*static_cast<Arguments*>(parameter)); }},

const Kernel kKernels[] = {TORCHAMP_TABLE_KERNELS(TORCHAMP_TABLE_ENTRY)
                               TORCHAMP_PLAIN_KERNELS(TORCHAMP_PLAIN_ENTRY)};

}  // namespace

const Kernel* find_kernel(const char* name) {
  for (const Kernel& kernel : kKernels) {
    if (std::strcmp(kernel.name, name) == 0) return &kernel;
  }
  return nullptr;
}

}  // namespace emulation
