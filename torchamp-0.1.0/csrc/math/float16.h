// float16 and bfloat16 as storage types, converted by integer arithmetic that rounds to nearest
// even on every compiler and ignores the flush-to-zero modes of the processor.
#pragma once

#include "math/macros.h"

namespace torchamp {

struct float16 {
  uint16 bits;
};

struct bfloat16 {
  uint16 bits;
};

TORCHAMP_MATH uint32 float_to_bits(float value) {
  uint32 bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

TORCHAMP_MATH float float_from_bits(uint32 bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

TORCHAMP_MATH float to_float(float value) {
  return value;
}

TORCHAMP_MATH float to_float(bfloat16 value) {
  return float_from_bits(static_cast<uint32>(value.bits) << 16);
}

/// Exact. A subnormal is its integer times 2^-24; elsewhere the exponent is rebiased, twice for inf
/// and NaN.
TORCHAMP_MATH float to_float(float16 value) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  const uint32 rebias = 112u << 23;
  const uint32 magnitude = value.bits & 0x7fffu;
  const uint32 sign = static_cast<uint32>(value.bits & 0x8000u) << 16;
  const uint32 normal = (magnitude << 13) + rebias + (magnitude >= 0x7c00u ? rebias : 0u);
  const uint32 subnormal = float_to_bits(static_cast<float>(magnitude) * 5.9604644775390625e-8f);
  return float_from_bits(sign | (magnitude < 0x400u ? subnormal : normal));
#endif
}

/// Rounds `value` to the storage type `T`: nearest even, overflow to infinity, NaN stays NaN.
template <class T>
TORCHAMP_MATH T from_float(float value);

template <>
TORCHAMP_MATH float from_float<float>(float value) {
  return value;
}

template <>
TORCHAMP_MATH bfloat16 from_float<bfloat16>(float value) {
  const uint32 bits = float_to_bits(value);
  const uint32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16>(is_nan ? (bits >> 16) | 0x40u : rounded)};
}

/// Below 2^-14 the sum with 0.5 rounds to multiples of 2^-24, the unit of float16's subnormals.
template <>
TORCHAMP_MATH float16 from_float<float16>(float value) {
#if defined(__CUDA_ARCH__)
  float16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#else
  const uint32 bits = float_to_bits(value);
  const uint32 magnitude = bits & 0x7fffffffu;
  const uint32 sign = (bits >> 16) & 0x8000u;
  const uint32 subnormal = float_to_bits(float_from_bits(magnitude) + 0.5f) - 0x3f000000u;
  const uint32 normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
  const uint32 nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  const uint32 finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32 special = magnitude > 0x7f800000u ? nan : 0x7c00u;
  return {static_cast<uint16>(sign | (magnitude >= 0x477ff000u ? special : finite))};
#endif
}

/// Infinity or NaN: all exponent bits are set.
TORCHAMP_MATH bool is_nonfinite(float value) {
  return (float_to_bits(value) & 0x7f800000u) == 0x7f800000u;
}
TORCHAMP_MATH bool is_nonfinite(float16 value) {
  return (value.bits & 0x7c00u) == 0x7c00u;
}
TORCHAMP_MATH bool is_nonfinite(bfloat16 value) {
  return (value.bits & 0x7f80u) == 0x7f80u;
}

}  // namespace torchamp
