// Helpers for programs with one bug each, which the emulation or a sanitizer must detect.
#pragma once

#include "cuda/device.h"

namespace emulation {

/// Launches `kernel` with `argument`.
template <class Argument, class Kernel>
void launch(unsigned blocks, unsigned threads, Argument argument, Kernel kernel) {
  struct Call {
    Argument argument;
    Kernel kernel;
  };
  Call call{argument, kernel};
  run_grid(
      blocks, threads,
      [](void* data) {
        auto& call = *static_cast<Call*>(data);
        call.kernel(call.argument);
      },
      &call);
}

}  // namespace emulation
