// A CUDA driver that runs kernels on the emulation: what the launchers call, from plan to kernel,
// is the code that runs on a card.
#pragma once

#include <string>

#include "cuda/driver.h"

namespace emulation {

/// One device of compute capability 9.0. A launch outside the device's context fails.
const torchamp::cuda::Driver& driver();

/// Launches since the start.
int launches();

/// The last one's kernel.
std::string last_launched();

}  // namespace emulation
