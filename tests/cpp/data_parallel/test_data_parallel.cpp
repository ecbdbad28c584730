#include <ATen/Parallel.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torchamp/data_parallel.h>

#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

/// A layer that records the state of its forwards.
struct LayerImpl : torch::nn::Cloneable<LayerImpl> {
  LayerImpl() { reset(); }
  void reset() override { linear = register_module("linear", torch::nn::Linear(4, 2)); }
  Tensor forward(const Tensor& x) { return linear(x); }

  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Layer);

class DataParallelTest : public LevelTest {
 protected:
  struct Run {
    Tensor output;
    std::vector<Tensor> grads;
  };

  template <class Forward>
  static Run run(const Forward& forward) {
    at::manual_seed(3);
    Layer net;
    net->to(device());
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto amped = initialize(net, sgd, quiet(level()).loss_scale(64.0));
    const Tensor output = forward(amped.model, make_batch(device()).data);
    { scale_loss(output.square().mean(), amped.optimizer).backward(); }
    Run result{output.detach(), {}};
    for (const Tensor& master : amped.optimizer.master_params()) {
      result.grads.push_back(master.grad().clone());
    }
    return result;
  }

  static void expect_close(const Run& got, const Run& expected) {
    EXPECT_EQ(got.output.scalar_type(), expected.output.scalar_type());
    EXPECT_TRUE(at::allclose(got.output.to(at::kFloat), expected.output.to(at::kFloat)));
    for (size_t i = 0; i < expected.grads.size(); ++i) {
      EXPECT_TRUE(at::allclose(got.grads[i], expected.grads[i], 1e-2, 1e-3)) << i;
    }
  }
};

TEST_P(DataParallelTest, IsTheModelOnTheWholeBatch) {
  const Run whole = run([](auto& model, const Tensor& data) { return model(data); });
  for (const size_t count : {1, 2, 3}) {
    const Run parallel = run([&](auto& model, const Tensor& data) {
      return data_parallel(model, data, std::vector<at::Device>(count, device()));
    });
    expect_close(parallel, whole);
  }
}

TEST_P(DataParallelTest, ABatchSmallerThanTheDevicesUsesFewer) {
  Layer net;
  net->to(device());
  auto model = initialize(net, quiet(level()));
  const Tensor two = make_batch(device()).data.slice(0, 0, 2);
  const Tensor output = data_parallel(model, two, std::vector<at::Device>(4, device()));
  EXPECT_TRUE(at::allclose(output, model(two)));
}

TEST_P(DataParallelTest, ThreadsOfReplicasCastAsTheModels) {
  torch::nn::Sequential stack(torch::nn::Linear(4, 2));
  stack->to(device());
  auto model = initialize(stack, quiet(level()));
  const Tensor data = make_batch(device()).data;
  at::set_num_threads(2);
  const Tensor output = data_parallel(model, data, std::vector<at::Device>(2, device()));
  EXPECT_EQ(output.scalar_type(), model(data).scalar_type());
  EXPECT_TRUE(at::allclose(output, model(data)));
}

TEST_P(DataParallelTest, NeedsADevice) {
  auto model = initialize(Layer(), quiet(level()));
  EXPECT_EQ(message_of([&] { data_parallel(model, make_batch(at::kCPU).data, {}); }),
            "data_parallel: expected at least one device, got none");
}

TORCHAMP_AT_LEVELS(DataParallelTest, OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O5);

}  // namespace
}  // namespace torchamp
