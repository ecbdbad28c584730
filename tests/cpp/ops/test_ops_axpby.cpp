#include <torchamp/ops.h>

#include "device.h"
#include "lists.h"
#include "oracle.h"

namespace torchamp {
namespace {

using at::Tensor;
using ops::Check;

class AxpbyTest : public DeviceTest {
 protected:
  Tensor floats(const std::vector<double>& values, at::ScalarType dtype = at::kFloat) const {
    return tensor_of(values, dtype, device());
  }
  bool found() const { return found_inf_.item<float>() != 0; }

  Tensor found_inf_ = scalar_of(0, at::kFloat, device());
};

TEST_P(AxpbyTest, MatchesTheOracle) {
  const Lists all = every_dtype(3, device());
  const auto outputs = clones(all.lists[2]);
  const double a = 0.7, b = -1.3;
  ops::axpby(a, all.lists[0], b, all.lists[1], outputs, found_inf_);
  for (size_t i = 0; i < all.length(); ++i) {
    const Tensor &x = all.lists[0][i], &y = all.lists[1][i], &before = all.lists[2][i];
    if (!before.defined()) continue;
    const bool whole = x.defined() && y.defined();
    const Tensor expected = whole ? oracle::axpby(a, x, b, y, before) : before;
    const bool exact = !whole || (all.flat[i] && !kernels_are_off());
    EXPECT_TRUE(exact ? same_bits(outputs[i], expected)
                      : close(outputs[i], expected, precision_of({x, y}, before)))
        << all.names[i];
  }
  EXPECT_FALSE(found());
}

TEST_P(AxpbyTest, WritesOverEitherInput) {
  for (const auto dtype : kDtypes) {
    Random random(7);
    const std::vector<Tensor> x = {random.normal({1000}, dtype, device())};
    const std::vector<Tensor> y = {random.normal({1000}, dtype, device())};
    const Tensor expected = oracle::axpby(2, x[0], 0.5, y[0], x[0]);
    const auto over_x = clones(x), over_y = clones(y);
    ops::axpby(2, over_x, 0.5, y, over_x, found_inf_);
    ops::axpby(2, x, 0.5, over_y, over_y, found_inf_);
    EXPECT_TRUE(same_bits(over_x[0], expected)) << dtype;
    EXPECT_TRUE(same_bits(over_y[0], expected)) << dtype;
  }
}

TEST_P(AxpbyTest, ChecksOnlyTheChosenInputs) {
  const std::vector<Tensor> clean = {floats({1, 2})}, bad = {floats({1, NAN})};
  const auto finds = [&](const std::vector<Tensor>& x, const std::vector<Tensor>& y,
                         Check checked) {
    found_inf_.zero_();
    ops::axpby(1, x, 1, y, clones(clean), found_inf_, checked);
    return found();
  };
  EXPECT_TRUE(finds(bad, clean, Check::kX));
  EXPECT_FALSE(finds(bad, clean, Check::kY));
  EXPECT_TRUE(finds(bad, clean, Check::kBoth));
  EXPECT_FALSE(finds(clean, bad, Check::kX));
  EXPECT_TRUE(finds(clean, bad, Check::kY));
  EXPECT_TRUE(finds(clean, bad, Check::kBoth));
}

TEST_P(AxpbyTest, FlagsTheTensorsItFound) {
  const std::vector<Tensor> x = {floats({1}), floats({INFINITY}), floats({1}), floats({1})};
  const std::vector<Tensor> y = {floats({1}), floats({1}), floats({-INFINITY}), floats({1e6})};
  const std::vector<Tensor> outputs = {floats({0}), floats({0}), floats({0}),
                                       floats({0}, at::kHalf)};
  const Tensor flags = clear_flags(4, device());
  ops::axpby(1, x, 1, y, outputs, found_inf_, Check::kBoth, flags);
  EXPECT_TRUE(same_bits(flags, floats({0, 1, 1, 1}, at::kByte)));
}

TORCHAMP_ON_EACH_DEVICE(AxpbyTest);

}  // namespace
}  // namespace torchamp
