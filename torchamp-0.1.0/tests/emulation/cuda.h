// CUDA's built-ins in plain C++, to compile the kernel program into a test. Included before it.
#pragma once

#include <cmath>
#include <cstring>

#include "scheduler.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads, blocks)
#define __grid_constant__ &

#define threadIdx (::emulation::thread_index())
#define blockIdx (::emulation::block_index())
#define blockDim (::emulation::block_size())
#define gridDim (::emulation::grid_size())

#define TORCHAMP_SHARED(type, name, count)           \
  static char name##_declaration;                    \
  type(&name)[count] = *static_cast<type(*)[count]>( \
      ::emulation::shared_memory(&name##_declaration, sizeof(type[count])))

inline void __syncthreads() {
  emulation::sync_threads();
}

/// The sanitizers do not support fences: here, the atomics order the accesses around them.
inline void __threadfence() {}

inline unsigned atomicAdd(unsigned* to, unsigned value) {
  return __atomic_fetch_add(to, value, __ATOMIC_ACQ_REL);
}

inline bool __any_sync(unsigned mask, bool predicate) {
  return emulation::any(mask, predicate);
}

template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t), "a lane gives at most 8 bytes");
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = emulation::exchange(mask, bits, threadIdx.x % 32 + distance);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
