// float8 as products read it: a tensor is divided by a power of two, its scale, and rounded.
#pragma once

#include "math/float16.h"

namespace torchamp {

/// Four bits of exponent and three of mantissa, up to 448; or five and two, up to 57344.
enum class Float8 : uint8 { kE4m3, kE5m2 };

/// A matrix's sizes, and from one row to the next the number of elements in memory.
struct Matrix {
  int64 rows;
  int64 columns;
  int64 stride;
};

/// Matrices are cast by tiles of as many rows and columns.
constexpr int kTile = 64;

/// The transposed one's rows have a multiple of so many elements, the last of which are zeros.
constexpr int kRowMultiple = 16;

TORCHAMP_MATH int64 padded(int64 elements) {
  return (elements + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

TORCHAMP_MATH int64 tiles(int64 elements) {
  return (elements + kTile - 1) / kTile;
}

/// A float's bits without its sign: NaNs are above infinity, and that above all numbers.
TORCHAMP_MATH uint32 magnitude_of(float value) {
  return float_to_bits(value) & 0x7fffffffu;
}

/// Bits of a float's mantissa. Above them is its exponent, biased by 127.
constexpr int kFloatMantissa = 23;

/// The exponent of the format's largest number, which is 1.75 · 2^exponent.
TORCHAMP_MATH uint32 largest_exponent(Float8 format) {
  return format == Float8::kE4m3 ? 8 : 15;
}

/// The smallest power of two that brings the magnitude within the format, and no subnormal, which
/// has no reciprocal; 1 for zero; NaN for what is not finite.
TORCHAMP_MATH float float8_scale(uint32 magnitude, Float8 format) {
  if (magnitude == 0) return 1.0f;
  if (magnitude >= 0x7f800000u) return float_from_bits(0x7fc00000u);
  const uint32 above = (magnitude + 0x1fffffu) >> kFloatMantissa;  // 1.75 stays, more is carried
  const uint32 largest = largest_exponent(format);
  return float_from_bits((above > largest ? above - largest : 1u) << kFloatMantissa);
}

/// Rounds to nearest even. Larger numbers become the largest, NaN stays NaN.
TORCHAMP_MATH uint8 to_float8(float value, Float8 format) {
  const uint32 shift = format == Float8::kE4m3 ? 20 : 21;       // bits of mantissa that are dropped
  const uint32 smallest = format == Float8::kE4m3 ? 121 : 113;  // exponent of normal numbers
  const uint32 largest = (127 + largest_exponent(format)) << kFloatMantissa | 0x600000u;
  const uint32 magnitude = magnitude_of(value);
  const uint32 kept = magnitude < largest ? magnitude : largest;
  const uint32 half = (1u << (shift - 1)) - 1 + (kept >> shift & 1u);
  const uint32 normal = (kept + half - ((smallest - 1) << kFloatMantissa)) >> shift;
  // The sum's last bit is the unit of subnormals.
  const uint32 unit = (smallest + shift) << kFloatMantissa;
  const uint32 subnormal = float_to_bits(float_from_bits(kept) + float_from_bits(unit)) - unit;
  const uint32 rounded = kept < smallest << kFloatMantissa ? subnormal : normal;
  const uint32 sign = float_to_bits(value) >> 24 & 0x80u;
  return static_cast<uint8>(magnitude > 0x7f800000u ? 0x7fu : sign | rounded);
}

}  // namespace torchamp
