// The kernel program, compiled as plain C++.
#pragma once

namespace emulation {

struct Kernel {
  const char* name;
  /// Runs one thread of the kernel.
  void (*body)(void* parameter);
};

/// Null where there is no kernel of that name.
const Kernel* find_kernel(const char* name);

}  // namespace emulation
