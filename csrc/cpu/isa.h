// One binary, two instruction sets: a block's loop is inlined into a copy compiled for AVX2, FMA
// and F16C and into a portable one, chosen for the processor at run time. Only these functions
// carry machine flags, so that no code compiled for AVX2 runs on other processors. Every aarch64
// has NEON, for which the portable copy is vectorised.
#pragma once

#include "math/macros.h"

#if defined(__x86_64__)
#include <cpuid.h>
#define TORCHAMP_AVX2 __attribute__((target("avx2,fma,f16c")))
#elif defined(__aarch64__)
#define TORCHAMP_NEON
#endif

namespace torchamp::cpu {

#if defined(TORCHAMP_AVX2)

/// Asks the processor: not every compiler's __builtin_cpu_supports knows the name.
inline bool has_f16c() {
  unsigned eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

inline const bool kHasAvx2 =
    __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();

template <class Block, class... Args>
TORCHAMP_AVX2 auto run_avx2(Args... args) {
  return Block::run(args...);
}

#endif

/// Whether stores can bypass the caches.
inline bool can_stream() {
#if defined(TORCHAMP_AVX2)
  return kHasAvx2;
#else
  return false;
#endif
}

template <class Block, class... Args>
auto run_portable(Args... args) {
  return Block::run(args...);
}

/// Calls Block::run, a static TORCHAMP_MATH function, compiled for this processor.
template <class Block, class... Args>
auto run_block(Args... args) {
#if defined(TORCHAMP_AVX2)
  if (kHasAvx2) return run_avx2<Block>(args...);
#endif
  return run_portable<Block>(args...);
}

}  // namespace torchamp::cpu
