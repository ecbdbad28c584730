#include <torchamp/ops.h>

#include "device.h"
#include "lists.h"

namespace torchamp {
namespace {

using at::Tensor;

class CopyCastTest : public DeviceTest {};

TEST_P(CopyCastTest, MatchesTorchsCopyBitForBit) {
  const Lists all = every_dtype(2, device());
  const auto model_params = clones(all.lists[1]);
  ops::copy_cast(all.lists[0], model_params);
  for (size_t i = 0; i < all.length(); ++i) {
    const Tensor &master = all.lists[0][i], &before = all.lists[1][i];
    if (!before.defined()) continue;
    const Tensor expected = master.defined() ? master.to(before.scalar_type()) : before;
    EXPECT_TRUE(same_bits(model_params[i], expected)) << all.names[i];
  }
}

TEST_P(CopyCastTest, KeepsInfinitiesNansAndSubnormals) {
  const std::vector<Tensor> masters = {
      tensor_of({INFINITY, -INFINITY, NAN, 1e30, -0.0, 0x1p-24, 0x1p-140}, at::kFloat, device())};
  for (const auto dtype : kDtypes) {
    const std::vector<Tensor> params = {masters[0].to(dtype, false, /*copy=*/true).zero_()};
    ops::copy_cast(masters, params);
    EXPECT_TRUE(same_bits(params[0], masters[0].to(dtype))) << dtype;
  }
}

TEST_P(CopyCastTest, BumpsTheVersionsOfWhatItWrites) {
  const std::vector<Tensor> masters = {tensor_of({1}, at::kFloat, device())};
  const std::vector<Tensor> params = {tensor_of({0}, at::kHalf, device())};
  const auto master_version = masters[0]._version(), param_version = params[0]._version();
  ops::copy_cast(masters, params);
  EXPECT_EQ(masters[0]._version(), master_version);
  EXPECT_GT(params[0]._version(), param_version);
}

TEST_P(CopyCastTest, WritesParametersThatRequireGrad) {
  const Tensor param = tensor_of({0, 0}, at::kFloat, device()).set_requires_grad(true);
  ops::copy_cast(std::vector<Tensor>{tensor_of({1, 2}, at::kFloat, device())},
                 std::vector<Tensor>{param});
  EXPECT_TRUE(same_bits(param, tensor_of({1, 2}, at::kFloat, device())));
  EXPECT_FALSE(param.grad_fn());
}

TORCHAMP_ON_EACH_DEVICE(CopyCastTest);

}  // namespace
}  // namespace torchamp
