#include <torchamp/ops.h>

#include "device.h"
#include "lists.h"
#include "oracle.h"

namespace torchamp {
namespace {

using at::Tensor;

class UnscaleTest : public DeviceTest {
 protected:
  Tensor scalar(double value) const { return scalar_of(value, at::kFloat, device()); }
  Tensor floats(const std::vector<double>& values, at::ScalarType dtype = at::kFloat) const {
    return tensor_of(values, dtype, device());
  }
  bool found() const { return found_inf_.item<float>() != 0; }

  Tensor found_inf_ = scalar_of(0, at::kFloat, device());
};

TEST_P(UnscaleTest, MatchesTheOracleBitForBit) {
  const Lists all = every_dtype(2, device());
  for (const float inv_scale : {1.0f / 65536, 0.7f}) {
    const auto masters = clones(all.lists[1]);
    ops::unscale(all.lists[0], masters, scalar(inv_scale), found_inf_);
    for (size_t i = 0; i < all.length(); ++i) {
      const Tensor &scaled = all.lists[0][i], &before = all.lists[1][i];
      if (!before.defined()) continue;
      const Tensor expected =
          scaled.defined() ? oracle::unscale(scaled, before, inv_scale) : before;
      EXPECT_TRUE(same_bits(masters[i], expected)) << all.names[i] << ", by " << inv_scale;
    }
  }
  EXPECT_FALSE(found());
}

TEST_P(UnscaleTest, AccumulatesWithOneRounding) {
  const Lists all = every_dtype(2, device());
  const float inv_scale = 0.3f;
  const auto masters = clones(all.lists[1]);
  ops::unscale(all.lists[0], masters, scalar(inv_scale), found_inf_, /*accumulate=*/true);
  for (size_t i = 0; i < all.length(); ++i) {
    const Tensor &scaled = all.lists[0][i], &before = all.lists[1][i];
    if (!scaled.defined() || !before.defined()) continue;
    const Tensor expected = oracle::unscale_onto(scaled, before, inv_scale);
    const bool exact = all.flat[i] && !kernels_are_off();
    EXPECT_TRUE(exact ? same_bits(masters[i], expected)
                      : close(masters[i], expected, precision_of({scaled, before}, before)))
        << all.names[i];
  }
}

TEST_P(UnscaleTest, UnscalesInPlace) {
  for (const auto dtype : kDtypes) {
    const std::vector<Tensor> grads = {Random(4).normal({1000}, dtype, device())};
    const Tensor expected = oracle::unscale(grads[0], grads[0], 0.1f);
    ops::unscale(grads, grads, scalar(0.1f), found_inf_);
    EXPECT_TRUE(same_bits(grads[0], expected)) << dtype;
  }
}

/// A non-finite value at every index of one tensor, which has a head, blocks and a tail.
TEST_P(UnscaleTest, FindsANonfiniteGradAtAnyPlace) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const std::vector<Tensor> scaled = {floats({1, 2}), Random(5).normal({531}, dtype, device()),
                                        floats({3})};
    const auto masters = clones(scaled);
    for (int64_t place = 0; place < 531; ++place) {
      const double bad = place % 3 == 0 ? NAN : place % 3 == 1 ? INFINITY : -INFINITY;
      const Tensor kept = scaled[1][place].clone();
      const Tensor flags = clear_flags(3, device());
      scaled[1][place].fill_(bad);
      found_inf_.zero_();
      ops::unscale(scaled, masters, scalar(1), found_inf_, place % 2 == 0, flags);
      ASSERT_TRUE(found()) << dtype << " at " << place;
      ASSERT_TRUE(same_bits(flags, floats({0, 1, 0}, at::kByte))) << dtype << " at " << place;
      scaled[1][place].copy_(kept);
      masters[1].zero_();
    }
  }
}

TEST_P(UnscaleTest, IgnoresTheValuesOfMasters) {
  const std::vector<Tensor> masters = {floats({INFINITY, NAN})};
  ops::unscale(std::vector<Tensor>{floats({1, 1})}, masters, scalar(1), found_inf_, true);
  EXPECT_FALSE(found());
}

TEST_P(UnscaleTest, FlagsA16BitMasterGradThatOverflows) {
  const std::vector<Tensor> scaled = {floats({60000}), floats({60000})};
  const std::vector<Tensor> masters = {floats({60000}, at::kHalf), floats({60000}, at::kFloat)};
  const Tensor flags = clear_flags(2, device());
  ops::unscale(scaled, masters, scalar(1), found_inf_, true, flags);
  EXPECT_TRUE(same_bits(flags, floats({1, 0}, at::kByte)));
}

TEST_P(UnscaleTest, ThousandsOfTensorsInOneCall) {
  std::vector<Tensor> scaled, masters;
  Random random(6);
  for (int i = 0; i < 3000; ++i) {
    scaled.push_back(random.normal({random.below(70)}, kDtypes[random.below(3)], device()));
    masters.push_back(scaled.back().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true));
  }
  ops::unscale(scaled, masters, scalar(0.25), found_inf_);
  for (size_t i = 0; i < scaled.size(); ++i) {
    ASSERT_TRUE(same_bits(masters[i], scaled[i].to(at::kFloat).mul(0.25))) << i;
  }
}

TEST_P(UnscaleTest, KeepsSubnormals) {
  const std::vector<Tensor> scaled = {floats({0x1p-24}, at::kHalf)};
  const std::vector<Tensor> masters = {floats({0})};
  ops::unscale(scaled, masters, scalar(0x1p-110), found_inf_);
  EXPECT_TRUE(same_bits(masters[0], floats({0x1p-134})));
}

TORCHAMP_ON_EACH_DEVICE(UnscaleTest);

}  // namespace
}  // namespace torchamp
