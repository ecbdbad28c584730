#include <torchamp/ops.h>

#include "device.h"
#include "lists.h"
#include "oracle.h"

namespace torchamp {
namespace {

using at::Tensor;

class CheckTest : public DeviceTest {
 protected:
  bool found() const { return found_inf_.item<float>() != 0; }

  Tensor found_inf_ = scalar_of(0, at::kFloat, device());
};

TEST_P(CheckTest, CleanListsOfAnyKindPass) {
  const Lists all = every_dtype(1, device());
  const Tensor flags = clear_flags(static_cast<int64_t>(all.length()), device());
  ops::check(all.lists[0], found_inf_, flags);
  EXPECT_FALSE(found());
  EXPECT_TRUE(same_bits(flags, clear_flags(flags.numel(), device())));
}

TEST_P(CheckTest, ALargestFiniteValueIsFinite) {
  const std::vector<Tensor> largest = {tensor_of({65504}, at::kHalf, device()),
                                       tensor_of({3.3895e38}, at::kBFloat16, device()),
                                       tensor_of({3.4028e38}, at::kFloat, device())};
  ops::check(largest, found_inf_);
  EXPECT_FALSE(found());
}

/// One non-finite value in each tensor in turn, at a random index.
TEST_P(CheckTest, NamesEachTensorWithABadValue) {
  const Lists all = every_dtype(1, device());
  Random random(8);
  for (size_t i = 0; i < all.length(); i += 7) {
    const Tensor& tensor = all.lists[0][i];
    if (!tensor.defined() || tensor.numel() == 0) continue;
    auto tensors = all.lists[0];
    tensors[i] = tensor.clone();
    Tensor place = tensors[i];
    while (place.dim() > 0) place = place[random.below(place.size(0))];
    place.fill_(i % 2 == 0 ? NAN : -INFINITY);
    const Tensor flags = clear_flags(static_cast<int64_t>(all.length()), device());
    found_inf_.zero_();
    ops::check(tensors, found_inf_, flags);
    EXPECT_TRUE(found()) << all.names[i];
    EXPECT_EQ(flags.sum().item<int64_t>(), 1) << all.names[i];
    EXPECT_EQ(flags[static_cast<int64_t>(i)].item<int64_t>(), 1) << all.names[i];
  }
}

TEST_P(CheckTest, FindsABadValueInEveryUnitOfALargeTensor) {
  const Tensor large = Random(9).normal({200000}, at::kHalf, device());
  for (int64_t place = 0; place < large.numel(); place += 9973) {
    const Tensor kept = large[place].clone();
    large[place].fill_(INFINITY);
    found_inf_.zero_();
    ops::check(std::vector<Tensor>{large}, found_inf_);
    EXPECT_TRUE(found()) << place;
    large[place].copy_(kept);
  }
}

TEST_P(CheckTest, AnEmptyListIsClean) {
  ops::check(std::vector<Tensor>{}, found_inf_, clear_flags(0, device()));
  EXPECT_FALSE(found());
}

TORCHAMP_ON_EACH_DEVICE(CheckTest);

}  // namespace
}  // namespace torchamp
