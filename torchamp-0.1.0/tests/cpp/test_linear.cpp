#include <ATen/ops/linear.h>
#include <torchamp/linear.h>

#include <array>

#include "device.h"
#include "net.h"

namespace torchamp {
namespace {

using at::Tensor;

class LinearTest : public DeviceTest {
 protected:
  static Tensor random(std::vector<int64_t> sizes, at::ScalarType dtype) {
    return torch::randn(sizes, at::TensorOptions(device())).to(dtype).requires_grad_();
  }
};

TEST_P(LinearTest, OnlyTheWeightsGradDiffersFromTorchs) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble}) {
    torch::manual_seed(1);
    const Tensor input = random({2, 6, 3}, dtype), weight = random({5, 3}, dtype);
    const Tensor bias = random({5}, dtype), grad = random({2, 6, 5}, dtype).detach();
    const auto run = [&](auto function) {
      for (const Tensor& leaf : {input, weight, bias}) leaf.mutable_grad().reset();
      const Tensor out = function(input, weight, bias);
      out.backward(grad);
      return std::vector<Tensor>{out.detach(), input.grad(), bias.grad(), weight.grad()};
    };
    const auto theirs = run([](auto... arguments) { return at::linear(arguments...); });
    const auto ours = run([](auto... arguments) { return torchamp::linear(arguments...); });
    EXPECT_EQ(ours.back().scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
    const double tolerance = dtype == at::kBFloat16 ? 2e-2 : dtype == at::kHalf ? 2e-3 : 1e-5;
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(torch::allclose(ours[i].to(dtype), theirs[i], tolerance, tolerance)) << i;
    }
  }
}

TEST_P(LinearTest, MicroBatchesAddUpInFloat32) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const Tensor weight = torch::zeros({1, 1}, at::TensorOptions(device())).to(dtype);
    weight.requires_grad_();
    for (const double value : {2048.0, 0.75, 0.75}) {
      torchamp::linear(torch::full({1, 1}, value, weight.options().requires_grad(false)), weight)
          .sum()
          .backward();
    }
    EXPECT_EQ(weight.grad().item<float>(), 2049.5f);
  }
}

TEST_P(LinearTest, EmptySizesWorkAsInTorch) {
  for (const auto& [rows, columns, outputs] : {std::array{0, 3, 5}, {2, 0, 5}, {2, 3, 0}}) {
    const Tensor input = random({rows, columns}, at::kHalf);
    const Tensor weight = random({outputs, columns}, at::kHalf);
    torchamp::linear(input, weight).sum().backward();
    const Tensor expected = at::linear(input.detach(), weight.detach());
    EXPECT_TRUE(torch::equal(torchamp::linear(input, weight), expected));
    EXPECT_TRUE(torch::equal(weight.grad(), torch::zeros_like(weight.grad())));
    EXPECT_EQ(input.grad().sizes(), input.sizes());
  }
}

TEST_P(LinearTest, WrongArguments) {
  const Tensor weight = random({5, 3}, at::kFloat);
  EXPECT_THROW(torchamp::linear(random({2, 4}, at::kFloat), weight), c10::Error);
  EXPECT_THROW(torchamp::linear(Tensor(), weight), c10::TypeError);
}

TORCHAMP_ON_EACH_DEVICE(LinearTest);

}  // namespace
}  // namespace torchamp
