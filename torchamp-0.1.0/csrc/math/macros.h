// Macros that let one source be compiled by g++, clang, nvcc and NVRTC.
#pragma once

#if !defined(__CUDACC_RTC__)
#include <cmath>
#include <cstring>
#endif

#if defined(__CUDACC__)
#define TORCHAMP_MATH __host__ __device__ __forceinline__
#else
#define TORCHAMP_MATH inline __attribute__((always_inline))
#endif

namespace torchamp {

using uint8 = unsigned char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using int32 = int;
using int64 = long long;
using uint64 = unsigned long long;

}  // namespace torchamp
