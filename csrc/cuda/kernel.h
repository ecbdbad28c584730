// The host's list of the kernels.
#pragma once

#include "cuda/arguments.h"

namespace torchamp::cuda {

enum class Kernel {
#define TORCHAMP_LIST(Name, name, function, Parameter) k##Name,
  TORCHAMP_KERNELS(TORCHAMP_LIST)
#undef TORCHAMP_LIST
};

constexpr const char* kKernelNames[] = {
#define TORCHAMP_LIST(Name, name, function, Parameter) "torchamp_" #name,
    TORCHAMP_KERNELS(TORCHAMP_LIST)
#undef TORCHAMP_LIST
};

/// The definition passed to kernels.cu.
constexpr const char* kKernelDefinitions[] = {
#define TORCHAMP_LIST(Name, name, function, Parameter) \
  "TORCHAMP_DEFINE(" #Name ", " #name ", " #function ", " #Parameter ")",
    TORCHAMP_KERNELS(TORCHAMP_LIST)
#undef TORCHAMP_LIST
};

constexpr int kKernels = sizeof(kKernelNames) / sizeof(kKernelNames[0]);

constexpr const char* name(Kernel kernel) {
  return kKernelNames[static_cast<int>(kernel)];
}

constexpr const char* definition(Kernel kernel) {
  return kKernelDefinitions[static_cast<int>(kernel)];
}

/// The variant of a per-iteration kernel for another place of its table.
constexpr Kernel small(Kernel kernel) {
  return static_cast<Kernel>(static_cast<int>(kernel) + 1);
}
constexpr Kernel resident(Kernel kernel) {
  return static_cast<Kernel>(static_cast<int>(kernel) + 2);
}

}  // namespace torchamp::cuda
