#include <ATen/ops/linear.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torchamp/linear.h>

#include <array>
#include <optional>
#include <vector>

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

/// The CPU with streams: which one is current, and who waited for which.
struct CpuStreams final : c10::impl::DeviceGuardImplInterface {
  using Device = c10::Device;
  using Stream = c10::Stream;
  using Index = c10::DeviceIndex;

  at::DeviceType type() const override { return at::kCPU; }
  Device exchangeDevice(Device) const override { return at::kCPU; }
  Device getDevice() const override { return at::kCPU; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device device) const noexcept override {
    return Stream(Stream::UNSAFE, device, current);
  }
  Stream exchangeStream(Stream stream) const noexcept override { return stream; }
  Index deviceCount() const noexcept override { return 1; }
  void destroyEvent(void*, Index) const noexcept override {}
  void record(void**, const Stream& stream, Index, c10::EventFlag) const override {
    recorded = stream.id();
  }
  void block(void*, const Stream& stream) const override {
    waits.push_back({stream.id(), *recorded});
  }

  mutable c10::StreamId current = 0;
  mutable std::optional<c10::StreamId> recorded = {};
  mutable std::vector<std::array<c10::StreamId, 2>> waits = {};
};

/// The waits after a backward from stream 0 in which the layer's runs on `stream`.
std::vector<std::array<c10::StreamId, 2>> waits_after_a_backward_on(c10::StreamId stream) {
  static const CpuStreams streams;
  streams.waits.clear();
  const auto* const before = c10::impl::getDeviceGuardImpl(at::kCPU);
  c10::impl::DeviceGuardImplRegistrar(at::kCPU, &streams);
  const Tensor input = torch::ones({2, 3}, at::requires_grad());
  const Tensor weight = torch::ones({5, 3}, at::requires_grad());
  const Tensor output = torchamp::linear(input, weight);
  output.register_hook([=](const Tensor& grad) { return streams.current = stream, grad; });
  input.register_hook([](const Tensor& grad) { return streams.current = 0, grad; });
  output.sum().backward();
  c10::impl::DeviceGuardImplRegistrar(at::kCPU, before);
  return streams.waits;
}

TEST(LinearStreamsTest, ABackwardFromAnotherStreamEndsWithTheWeightsGrad) {
  using Waits = std::vector<std::array<c10::StreamId, 2>>;
  EXPECT_EQ(waits_after_a_backward_on(7), (Waits{{0, 7}}));
  EXPECT_EQ(waits_after_a_backward_on(0), Waits{});
}

TEST(LinearStreamsTest, ItsNodeMayBeCalledByItself) {
  const Tensor weight = torch::ones({5, 3}, at::requires_grad());
  const Tensor output = torchamp::linear(torch::ones({2, 3}), weight);
  const torch::NoGradGuard no_grad;
  (*output.grad_fn())({torch::ones_like(output)});
  EXPECT_TRUE(torch::equal(weight.grad(), torch::full({5, 3}, 2.0)));
}

}  // namespace
}  // namespace torchamp
