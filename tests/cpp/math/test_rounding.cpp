// Stochastic rounding: math/rounding.h and its ATen counterpart.
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "aten/rounding.h"
#include "math/rounding.h"

namespace torchamp {
namespace {

using at::Tensor;

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

TEST(RoundingTest, AtenRoundsByTheSameNoise) {
  const Tensor values = at::full({300, 7}, 1.0f + 0.3f / 128);
  const Tensor across = values.t().contiguous().t();
  for (const Tensor& target : {values, across, at::zeros({300, 14}).slice(1, 0, 14, 2)}) {
    const aten::NoiseOf of{5, at::scalar_tensor(7), 2};
    const Tensor rounded = aten::round_stochastically(values, target, of).to(at::kFloat);
    for (int64_t row = 0; row < 300; ++row) {
      for (int64_t column = 0; column < 7; ++column) {
        const int64_t number = target.is_same(across) ? column * 300 + row : row * 7 + column;
        const auto one =
            round_stochastically(1.0f + 0.3f / 128, noise(noise_key(5, 7.0f), number, 2));
        ASSERT_EQ(rounded[row][column].item<float>(), to_float(one)) << row << ", " << column;
      }
    }
  }
}

}  // namespace
}  // namespace torchamp
