// The modules that this process has loaded, one a device.
#pragma once

#include "cuda/loader.h"
#include "kernels.h"

namespace torchamp::cuda {

/// The module of the queue's device, loaded if need be. Throws std::runtime_error as load() does.
const Module& module_of(Queue queue);

}  // namespace torchamp::cuda
