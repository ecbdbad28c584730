// The host's list of the kernels.
#pragma once

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

/// What kernels.cu is told to define.
constexpr const char* kKernelDefinitions[] = {
#define TORCHAMP_LIST(Name, name, Arguments) \
  "TORCHAMP_DEFINE_TABLE(" #Name ", " #name ", " #Arguments ")",
    TORCHAMP_TABLE_KERNELS(TORCHAMP_LIST)
#undef TORCHAMP_LIST
#define TORCHAMP_LIST(Name, name, Arguments) \
  "TORCHAMP_DEFINE_PLAIN(" #Name ", " #name ", " #Arguments ")",
        TORCHAMP_PLAIN_KERNELS(TORCHAMP_LIST)
#undef TORCHAMP_LIST
};

constexpr int kKernels = sizeof(kKernelNames) / sizeof(kKernelNames[0]);

constexpr const char* name(Kernel kernel) {
  return kKernelNames[static_cast<int>(kernel)];
}

constexpr const char* definition(Kernel kernel) {
  return kKernelDefinitions[static_cast<int>(kernel)];
}

}  // namespace torchamp::cuda
