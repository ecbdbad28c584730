#include <torchamp/ops.h>

#include "device.h"
#include "oracle.h"
#include "tensors.h"

namespace torchamp {
namespace {

using at::Tensor;

class UpdateScaleTest : public DeviceTest {
 protected:
  void start(float scale) {
    scale_ = scalar_of(scale, at::kFloat, device());
    growth_ = scalar_of(0, at::kInt, device());
  }
  void update(bool overflow, const ops::ScaleRule& rule) {
    ops::update_scale(scale_, growth_, scalar_of(overflow ? 1 : 0, at::kFloat, device()), rule);
  }
  float scale() const { return scale_.item<float>(); }
  int growth() const { return growth_.item<int>(); }

  Tensor scale_, growth_;
};

struct Script {
  const char* name;
  oracle::LossScale reference;
  int one_overflow_in;
};

/// Random overflows, compared with apex's rule after each step.
TEST_P(UpdateScaleTest, FollowsTheReferenceForThousandsOfSteps) {
  const Script scripts[] = {
      {"defaults, rare overflows", {65536}, 5000},
      {"short interval", {65536, 2, 0, 16777216, 10}, 40},
      {"up to the ceiling", {65536, 2, 0, 1 << 20, 3}, 100},
      {"down to the floor", {65536, 2, 128, 16777216, 50}, 2},
      {"down to the smallest float", {0x1p-120, 2, 0x1p-126, 16777216, 2000}, 2},
      {"a factor of 4", {65536, 4, 1, 16777216, 5}, 6},
  };
  for (const Script& script : scripts) {
    oracle::LossScale reference = script.reference;
    const ops::ScaleRule rule = {reference.factor, 1 / reference.factor, reference.interval,
                                 reference.floor, reference.ceiling};
    start(static_cast<float>(reference.scale));
    Random random(12);
    for (int step = 0; step < 3000; ++step) {
      const bool overflow = random.below(script.one_overflow_in) == 0;
      reference.update(overflow);
      update(overflow, rule);
      ASSERT_EQ(scale(), reference.scale) << script.name << ", step " << step;
      ASSERT_EQ(growth(), reference.unskipped) << script.name << ", step " << step;
    }
  }
}

TEST_P(UpdateScaleTest, TheDefaultsAreApexs) {
  start(65536);
  for (int step = 0; step < 1999; ++step) update(false, {});
  EXPECT_EQ(scale(), 65536.0f);
  update(false, {});
  EXPECT_EQ(scale(), 131072.0f);
  EXPECT_EQ(growth(), 0);
  update(true, {});
  EXPECT_EQ(scale(), 65536.0f);
}

TEST_P(UpdateScaleTest, ComesDownToACeilingThatHasFallen) {
  ops::ScaleRule rule;
  rule.max_scale = 1024;
  for (const bool overflow : {false, true}) {
    start(65536);
    update(overflow, rule);
    EXPECT_EQ(scale(), overflow ? 512.0f : 1024.0f);
  }
}

/// Storms of overflows with a few clean backwards in between, then none.
TEST_P(UpdateScaleTest, RecoversFromAnyStormInTensOfSteps) {
  for (int one_clean_in = 2; one_clean_in < 8; ++one_clean_in) {
    start(65536);
    Random random(one_clean_in);
    for (int step = 0; step < 1000; ++step) update(random.below(one_clean_in) != 0, {});
    for (int step = 0; step < 3; ++step) update(true, {});
    EXPECT_GE(scale(), 0x1p-10f);
    for (int step = 0; step < 40; ++step) update(false, {});
    EXPECT_GE(scale(), 65536.0f) << "one clean backward in " << one_clean_in;
  }
}

TEST_P(UpdateScaleTest, ARecoveryEndsWhereTheThirdOverflowSaysSo) {
  start(65536);
  for (int step = 0; step < 50; ++step) update(true, {});
  EXPECT_EQ(scale(), 0x1p-10f);
  for (int step = 0; step < 40; ++step) update(scale() > 4096, {});
  EXPECT_EQ(scale(), 4096.0f);
  for (int step = 0; step < 100; ++step) update(false, {});
  EXPECT_EQ(scale(), 4096.0f);
}

TEST_P(UpdateScaleTest, AboveOneAnOverflowAtTheFloorIsApexs) {
  ops::ScaleRule rule;
  rule.min_scale = 128;
  start(128);
  update(true, rule);
  for (int step = 0; step < 1999; ++step) update(false, rule);
  EXPECT_EQ(scale(), 128.0f);
  update(false, rule);
  EXPECT_EQ(scale(), 256.0f);
}

TEST_P(UpdateScaleTest, AnyNonzeroFoundInfIsAnOverflow) {
  for (const double value : {1.0, 0.5, -1.0, double{NAN}}) {
    start(4);
    ops::update_scale(scale_, growth_, scalar_of(value, at::kFloat, device()));
    EXPECT_EQ(scale(), 2.0f) << value;
  }
}

TEST_P(UpdateScaleTest, TakesOneElementOfAnyShape) {
  scale_ = tensor_of({8}, at::kFloat, device());
  growth_ = tensor_of({0}, at::kInt, device()).view({1, 1});
  update(true, {});
  EXPECT_TRUE(same_bits(scale_, tensor_of({4}, at::kFloat, device())));
}

TORCHAMP_ON_EACH_DEVICE(UpdateScaleTest);

}  // namespace
}  // namespace torchamp
