// The host's list of the kernels.
#pragma once

#include <array>

#include "cuda/kernel_list.h"

namespace torchamp::cuda {

enum class Kernel {
#define TORCHAMP_LIST(Name, name, Arguments) k##Name,
  TORCHAMP_TABLE_KERNELS(TORCHAMP_LIST) TORCHAMP_PLAIN_KERNELS(TORCHAMP_LIST)
#undef TORCHAMP_LIST
};

constexpr const char* kKernelNames[] = {
#define TORCHAMP_LIST(Name, name, Arguments) "torchamp_" #name,
    TORCHAMP_TABLE_KERNELS(TORCHAMP_LIST) TORCHAMP_PLAIN_KERNELS(TORCHAMP_LIST)
#undef TORCHAMP_LIST
};

constexpr int kKernels = sizeof(kKernelNames) / sizeof(kKernelNames[0]);

/// A device's functions, one a kernel.
using KernelFunctions = std::array<void*, kKernels>;

constexpr const char* name(Kernel kernel) {
  return kKernelNames[static_cast<int>(kernel)];
}

}  // namespace torchamp::cuda
