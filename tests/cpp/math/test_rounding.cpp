// Stochastic rounding: math/rounding.h and its ATen counterpart.
#include <ATen/ops/full.h>
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

TEST(RoundingTest, AtenRoundsStochasticallyWithoutBias) {
  const Tensor rounded = aten::round_stochastically(at::full({1 << 16}, 1.0f + 0.3f / 128));
  EXPECT_NEAR(rounded.to(at::kDouble).mean().item<double>(), 1.0 + 0.3 / 128, 1e-4);
}

}  // namespace
}  // namespace torchamp
