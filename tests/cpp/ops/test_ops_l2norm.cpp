#include <ATen/Parallel.h>
#include <torchamp/ops.h>

#include <cmath>

#include "device.h"
#include "lists.h"
#include "oracle.h"

namespace torchamp {
namespace {

using at::Tensor;

class L2NormTest : public DeviceTest {
 protected:
  bool found() const { return found_inf_.item<float>() != 0; }

  Tensor found_inf_ = scalar_of(0, at::kFloat, device());
};

TEST_P(L2NormTest, MatchesTheOracle) {
  const Lists all = every_dtype(1, device());
  const auto [norm, norms] = ops::l2norm(all.lists[0], /*per_tensor=*/true);
  double total = 0;
  std::vector<double> each;
  for (const Tensor& tensor : all.lists[0]) {
    const double squares = tensor.defined() ? oracle::sum_of_squares(tensor) : 0.0;
    each.push_back(std::sqrt(squares));
    total += squares;
  }
  EXPECT_TRUE(close(norms, tensor_of(each, at::kFloat, device()), at::kFloat));
  EXPECT_TRUE(close(norm, scalar_of(std::sqrt(total), at::kFloat, device()), at::kFloat));
}

TEST_P(L2NormTest, WithoutPerTensorGivesTheSameNormAlone) {
  const Lists all = every_dtype(1, device());
  const auto [alone, none] = ops::l2norm(all.lists[0]);
  EXPECT_FALSE(none.defined());
  EXPECT_TRUE(same_bits(alone, std::get<0>(ops::l2norm(all.lists[0], true))));
}

TEST_P(L2NormTest, IsZeroIfSkipped) {
  const std::vector<Tensor> tensors = {tensor_of({3, NAN}).to(device())};
  for (const float skip : {1.0f, 0.0f}) {
    const auto [norm, norms] =
        ops::l2norm(tensors, /*per_tensor=*/true, scalar_of(skip, at::kFloat, device()));
    EXPECT_EQ(norm.isnan().item<bool>(), skip == 0);
    EXPECT_EQ(norms[0].item<float>() == 0, skip != 0);
  }
}

TEST_P(L2NormTest, OfNothingIsZero) {
  const auto [norm, norms] = ops::l2norm(std::vector<Tensor>{Tensor(), Tensor()}, true);
  EXPECT_EQ(norm.item<float>(), 0.0f);
  EXPECT_TRUE(same_bits(norms, tensor_of({0, 0})));
  EXPECT_EQ(std::get<0>(ops::l2norm(std::vector<Tensor>{})).item<float>(), 0.0f);
}

TEST_P(L2NormTest, RepeatsOnAnyNumberOfThreads) {
  const std::vector<Tensor> tensors = {Random(10).normal({300000}, at::kFloat, device()),
                                       Random(11).normal({77777}, at::kHalf, device())};
  const Tensor norm = std::get<0>(ops::l2norm(tensors));
  const int threads = at::get_num_threads();
  for (const int count : {1, 2, 3, 7}) {
    at::set_num_threads(count);
    const Tensor again = std::get<0>(ops::l2norm(tensors));
    const bool exact = !kernels_are_off();
    EXPECT_TRUE(exact ? same_bits(again, norm) : close(again, norm, at::kFloat))
        << count << " threads";
  }
  at::set_num_threads(threads);
}

TEST_P(L2NormTest, KeepsThePrecisionOfManySmallSquares) {
  const std::vector<Tensor> ones = {tensor_of({0.1}).expand({1 << 22}).to(device()).contiguous()};
  const double expected = std::sqrt(oracle::sum_of_squares(ones[0]));
  EXPECT_NEAR(std::get<0>(ops::l2norm(ones)).item<float>(), expected, 1e-6 * expected);
}

TEST_P(L2NormTest, CheckGivesTheNormAndFlagsAtOnce) {
  const std::vector<Tensor> tensors = {tensor_of({3, 4}, at::kHalf, device()),
                                       tensor_of({12}, at::kFloat, device())};
  const Tensor flags = clear_flags(2, device());
  EXPECT_EQ(ops::check_l2norm(tensors, found_inf_, flags).item<float>(), 13.0f);
  EXPECT_FALSE(found());
  for (const auto dtype : kDtypes) {
    const std::vector<Tensor> bad = {tensors[0], tensor_of({1, NAN}, dtype, device())};
    found_inf_.zero_();
    const float norm = ops::check_l2norm(bad, found_inf_, flags).item<float>();
    EXPECT_FALSE(std::isfinite(norm)) << dtype;
    EXPECT_TRUE(found()) << dtype;
    EXPECT_TRUE(same_bits(flags, tensor_of({0, 1}, at::kByte, device()))) << dtype;
  }
}

TEST_P(L2NormTest, ASquareThatOverflowsIsNoOverflowOfTheGradient) {
  const std::vector<Tensor> large = {tensor_of({1e30}, at::kFloat, device())};
  ops::check_l2norm(large, found_inf_);
  EXPECT_FALSE(found());
}

TORCHAMP_ON_EACH_DEVICE(L2NormTest);

}  // namespace
}  // namespace torchamp
