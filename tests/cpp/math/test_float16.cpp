#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "math/float16.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace torchamp {
namespace {

constexpr uint32 kHalves = 65536;

/// The value of the bits in a format with `fraction` fraction bits and `bias`, by definition.
double decoded(uint32 bits, int fraction, int exponent_mask, int bias) {
  const double sign = bits & 0x8000u ? -1.0 : 1.0;
  const int exponent = static_cast<int>(bits >> fraction) & exponent_mask;
  const double part = bits & ((1u << fraction) - 1);
  if (exponent == exponent_mask) return part == 0 ? sign * INFINITY : NAN;
  const double unit = std::ldexp(1.0, -fraction);
  if (exponent == 0) return sign * std::ldexp(part * unit, 1 - bias);
  return sign * std::ldexp(1 + part * unit, exponent - bias);
}

double half_value(uint32 bits) {
  return decoded(bits, 10, 31, 15);
}
double bfloat_value(uint32 bits) {
  return decoded(bits, 7, 255, 127);
}

template <class T>
T of_bits(uint32 bits) {
  return {static_cast<uint16>(bits)};
}

/// The same number with the same sign, or both NaN.
void expect_same(double got, double expected, uint32 bits) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got)) << std::hex << bits;
    return;
  }
  EXPECT_TRUE(got == expected && std::signbit(got) == std::signbit(expected))
      << std::hex << bits << ": got " << got << ", expected " << expected;
}

TEST(Float16, EveryBitPatternWidensToItsValue) {
  for (uint32 bits = 0; bits < kHalves; ++bits) {
    expect_same(to_float(of_bits<float16>(bits)), half_value(bits), bits);
    expect_same(to_float(of_bits<bfloat16>(bits)), bfloat_value(bits), bits);
  }
}

TEST(Float16, EveryNumberSurvivesTheRoundTrip) {
  for (uint32 bits = 0; bits < kHalves; ++bits) {
    if (!std::isnan(half_value(bits))) {
      EXPECT_EQ(from_float<float16>(to_float(of_bits<float16>(bits))).bits, bits);
    }
    if (!std::isnan(bfloat_value(bits))) {
      EXPECT_EQ(from_float<bfloat16>(to_float(of_bits<bfloat16>(bits))).bits, bits);
    }
  }
}

TEST(Float16, EveryNanStaysNan) {
  for (uint32 bits = 0x7f800001u; bits < 0x80000000u; bits += 101) {
    for (const uint32 sign : {0u, 0x80000000u}) {
      const float nan = float_from_bits(bits | sign);
      EXPECT_TRUE(std::isnan(half_value(from_float<float16>(nan).bits))) << std::hex << bits;
      EXPECT_TRUE(std::isnan(bfloat_value(from_float<bfloat16>(nan).bits))) << std::hex << bits;
    }
  }
}

/// `lower` and `lower + 1` are adjacent values of one sign. Checks that floats next to their
/// midpoint round to the nearer value, and the midpoint itself to the even one.
template <class T>
void expect_nearest_even(uint32 lower, double middle) {
  const auto exact = static_cast<float>(middle);
  ASSERT_EQ(exact, middle);
  const float toward_zero = std::nextafterf(exact, 0.0f);
  const float away = std::nextafterf(exact, std::copysign(INFINITY, exact));
  EXPECT_EQ(from_float<T>(toward_zero).bits, lower) << toward_zero;
  EXPECT_EQ(from_float<T>(exact).bits, lower + (lower & 1)) << exact;
  EXPECT_EQ(from_float<T>(away).bits, lower + 1) << away;
}

TEST(Float16, EveryRoundingBoundaryGoesToTheNearestEven) {
  for (const uint32 sign : {0u, 0x8000u}) {
    for (uint32 bits = 0; bits < 0x7bffu; ++bits) {
      const uint32 half = sign | bits;
      expect_nearest_even<float16>(half, (half_value(half) + half_value(half + 1)) / 2);
    }
    for (uint32 bits = 0; bits < 0x7f7fu; ++bits) {
      const uint32 bfloat = sign | bits;
      expect_nearest_even<bfloat16>(bfloat, (bfloat_value(bfloat) + bfloat_value(bfloat + 1)) / 2);
    }
  }
}

TEST(Float16, WhatIsTooLargeBecomesInfinity) {
  EXPECT_EQ(from_float<float16>(65519.99f).bits, 0x7bff);
  EXPECT_EQ(from_float<float16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(from_float<float16>(-65520.0f).bits, 0xfc00);
  EXPECT_EQ(from_float<float16>(INFINITY).bits, 0x7c00);
  EXPECT_EQ(from_float<bfloat16>(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(from_float<bfloat16>(-INFINITY).bits, 0xff80);
}

TEST(Float16, AgreesWithTorchOnEvery1021stFloat) {
  for (uint64_t bits = 0; bits < 0x100000000u; bits += 1021) {
    const float value = float_from_bits(static_cast<uint32>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(from_float<float16>(value).bits, c10::Half(value).x) << value;
    ASSERT_EQ(from_float<bfloat16>(value).bits, c10::BFloat16(value).x) << value;
  }
}

#if defined(__x86_64__)

bool has_instructions() {
  return __builtin_cpu_supports("f16c");
}

__attribute__((target("f16c"))) uint16 narrowed(float value) {
  return static_cast<uint16>(
      _mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(value), _MM_FROUND_TO_NEAREST_INT), 0));
}

#elif defined(__aarch64__)

bool has_instructions() {
  return true;
}

uint16 narrowed(float value) {
  return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(value))), 0);
}

#else

bool has_instructions() {
  return false;
}

uint16 narrowed(float) {
  return 0;
}

#endif

TEST(Float16, AgreesWithTheProcessorOnEvery509thFloat) {
  if (!has_instructions()) GTEST_SKIP() << "this processor does not convert float16";
  for (uint64_t bits = 0; bits < 0x100000000u; bits += 509) {
    const float value = float_from_bits(static_cast<uint32>(bits));
    ASSERT_EQ(from_float<float16>(value).bits, narrowed(value)) << std::hex << bits;
  }
}

TEST(Float16, IsBlindToFlushToZero) {
#if defined(__x86_64__)
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040);
#endif
  const volatile float smallest_half = 5.9604644775390625e-8f;
  EXPECT_EQ(from_float<float16>(smallest_half).bits, 1);
  EXPECT_EQ(to_float(of_bits<float16>(1)), 5.9604644775390625e-8f);
  EXPECT_EQ(float_to_bits(to_float(of_bits<bfloat16>(1))), 0x10000u);
#if defined(__x86_64__)
  _mm_setcsr(mode);
#endif
}

TEST(Float16, NonfiniteIsInfinityOrNan) {
  for (uint32 bits = 0; bits < kHalves; ++bits) {
    EXPECT_EQ(is_nonfinite(of_bits<float16>(bits)), !std::isfinite(half_value(bits)));
    EXPECT_EQ(is_nonfinite(of_bits<bfloat16>(bits)), !std::isfinite(bfloat_value(bits)));
    const float wide = float_from_bits(bits << 16);
    EXPECT_EQ(is_nonfinite(wide), !std::isfinite(wide));
  }
}

}  // namespace
}  // namespace torchamp
