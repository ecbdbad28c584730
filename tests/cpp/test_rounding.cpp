// Low bits and stochastic rounding: math/rounding.h and its ATen counterpart.
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "aten/rounding.h"
#include "math/rounding.h"
#include "tensors.h"

namespace torchamp {
namespace {

using at::Tensor;

/// Floats of every exponent in `from` … `to`, including ties and values next to ties.
std::vector<float> floats_between(float from, float to) {
  std::mt19937 engine(3);
  std::vector<float> values;
  for (uint32 bits = float_to_bits(from); bits <= float_to_bits(to); bits += 0x9e37u) {
    for (const uint32 low : {0u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      values.push_back(float_from_bits((bits & 0xffff0000u) | low));
    }
    values.push_back(float_from_bits(bits ^ (engine() & 0xffffu)));
    if (engine() % 2 == 0) values.back() = -values.back();
  }
  return values;
}

template <class T>
float round_trip(float value) {
  const T high = from_float<T>(value);
  return reconstructed(high, low_bits_of(value, high));
}

TEST(LowBitsTest, Float16IsExactFromTwoToTheMinusSixteen) {
  for (const float value : floats_between(1.52587890625e-5f, 65000.0f)) {
    ASSERT_EQ(round_trip<float16>(value), value) << value;
  }
}

TEST(LowBitsTest, Float16IsCloseBelow) {
  for (const float value : floats_between(0.0f, 1.52587890625e-5f)) {
    ASSERT_LE(std::fabs(round_trip<float16>(value) - value), std::ldexp(1.001f, -40)) << value;
  }
}

TEST(LowBitsTest, BFloat16IsExactButForTies) {
  for (const float value : floats_between(0.0f, 3.4e38f)) {
    const bool is_tie = (float_to_bits(value) & 0xffffu) == 0x8000u;
    const float back = round_trip<bfloat16>(value);
    ASSERT_EQ(from_float<bfloat16>(back).bits, from_float<bfloat16>(value).bits) << value;
    if (is_tie) {
      ASSERT_LE(std::abs(static_cast<int>(float_to_bits(back) - float_to_bits(value))), 1);
    } else {
      ASSERT_EQ(back, value);
    }
  }
}

TEST(LowBitsTest, SpecialValuesStayThemselves) {
  for (const float value : {INFINITY, -INFINITY, 0.0f, -0.0f}) {
    EXPECT_EQ(float_to_bits(round_trip<float16>(value)), float_to_bits(value));
    EXPECT_EQ(float_to_bits(round_trip<bfloat16>(value)), float_to_bits(value));
  }
  EXPECT_TRUE(std::isnan(round_trip<float16>(NAN)));
  EXPECT_TRUE(std::isnan(round_trip<bfloat16>(NAN)));
  EXPECT_EQ(round_trip<float16>(1e5f), INFINITY);
  EXPECT_EQ(round_trip<bfloat16>(3.4e38f), 3.4e38f);
}

/// For example, a program clamped the model's parameter without updating the low bits.
template <class T>
void expect_nearby_whatever_the_low_bits() {
  for (const uint32 high : {0x0000u, 0x8000u, 0x0001u, 0x7bffu, 0x7c00u, 0x7f7fu, 0x7f80u}) {
    const float other = to_float(T{static_cast<uint16>(high)});
    if (std::isnan(other)) continue;
    for (const uint16 low_bits : {0x0000, 0x4000, 0x7fff, 0x8000, 0xc000, 0xffff}) {
      const float value = reconstructed(T{static_cast<uint16>(high)}, low_bits16{low_bits});
      if (value == other) continue;
      ASSERT_LE(std::fabs(value), std::fabs(other) * 1.01f + 1e-7f) << high << ' ' << low_bits;
    }
  }
}

TEST(LowBitsTest, StaleLowBitsAreHarmless) {
  expect_nearby_whatever_the_low_bits<float16>();
  expect_nearby_whatever_the_low_bits<bfloat16>();
}

TEST(RoundStochasticallyTest, TheMeanIsTheValue) {
  const float value = 1.0f + 0.3f / 128;
  double sum = 0;
  constexpr int kCount = 1 << 16;
  for (int i = 0; i < kCount; ++i) {
    const float rounded = to_float(round_stochastically(value, noise(noise_key(5, 7.0f), i, 2)));
    ASSERT_TRUE(rounded == 1.0f || rounded == 1.0078125f);
    sum += rounded;
  }
  EXPECT_NEAR(sum / kCount, value, 1e-4);
}

TEST(RoundStochasticallyTest, WhatFitsStays) {
  for (const float value : {0.0f, -1.5f, 3.3895314e38f, INFINITY, -INFINITY}) {
    EXPECT_EQ(to_float(round_stochastically(value, 0xffff)), value);
  }
  EXPECT_TRUE(std::isnan(to_float(round_stochastically(NAN, 0xffff))));
}

TEST(RoundStochasticallyTest, NoiseDiffersBetweenElementsListsStepsAndTensors) {
  std::vector<uint32> all;
  for (const int32 position : {0, 1}) {
    for (const float step : {1.0f, 2.0f}) {
      for (const int64 index : {int64{0}, int64{1}, int64{1} << 29, int64{1} << 33}) {
        for (const int list : {1, 2, 3})
          all.push_back(noise(noise_key(position, step), index, list));
      }
    }
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
}

TEST(RoundStochasticallyTest, ABlocksStreamIsTheNoiseOfEachElement) {
  constexpr int kBlock = 2048;
  for (const int64 boundary : {int64{0}, int64{1} << 29, int64{1} << 31, int64{1} << 33}) {
    for (const int64 begin : {boundary - kBlock, boundary}) {
      if (begin < 0) continue;
      const NoiseStream stream = noise_from(17, begin);
      for (const int i : {0, 1, 255, kBlock - 1}) {
        ASSERT_EQ(noise(stream, i, 3), noise(17, begin + i, 3)) << begin << " + " << i;
      }
    }
  }
}

Tensor as_tensor(const std::vector<float>& values) {
  return at::tensor(at::ArrayRef<float>(values));
}

template <class T>
void expect_aten_agrees(const std::vector<float>& values, at::ScalarType dtype) {
  const Tensor floats = as_tensor(values), high = floats.to(dtype);
  const Tensor low_bits = aten::low_bits_of(floats, high);
  std::vector<float> expected;
  for (const float value : values) expected.push_back(round_trip<T>(value));
  EXPECT_TRUE(same_bits(aten::reconstructed(high, low_bits), as_tensor(expected)));
}

TEST(RoundingTest, AtenAgrees) {
  auto values = floats_between(0.0f, 3.4e38f);
  values.insert(values.end(), {INFINITY, -INFINITY, NAN});
  expect_aten_agrees<float16>(values, at::kHalf);
  expect_aten_agrees<bfloat16>(values, at::kBFloat16);
}

TEST(RoundingTest, AtenRoundsStochasticallyWithoutBias) {
  const Tensor rounded = aten::round_stochastically(at::full({1 << 16}, 1.0f + 0.3f / 128));
  EXPECT_NEAR(rounded.to(at::kDouble).mean().item<double>(), 1.0 + 0.3 / 128, 1e-4);
}

}  // namespace
}  // namespace torchamp
