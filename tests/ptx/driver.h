// A CUDA driver that executes the kernels' PTX. From plan to kernel, the launchers run the same
// code as on a card.
#pragma once

#include <string>

#include "cuda/driver.h"

namespace kernel_tests {

/// One device of compute capability 9.0. A launch outside the device's context fails.
const torchamp::cuda::Driver& driver();

/// The number of launches since the start.
int launches();

/// The kernel of the last launch.
std::string last_launched();

}  // namespace kernel_tests
