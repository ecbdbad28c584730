// Mistakes that may be meant: one line on std::clog each.
#include <ATen/ops/binary_cross_entropy.h>

#include <functional>
#include <iostream>
#include <sstream>

#include "core/loss_graph.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

class WarningsTest : public LevelTest {
 protected:
  /// What `call` prints.
  static std::string printed(const std::function<void()>& call) {
    std::ostringstream heard;
    auto* const before = std::clog.rdbuf(heard.rdbuf());
    call();
    std::clog.rdbuf(before);
    return heard.str();
  }
};

TEST_P(WarningsTest, OfStepsWithoutABackward) {
  const Options options = Options(level()).loss_scale(1024.0);
  Training training(device(), options);
  EXPECT_EQ(printed([&] { training.step(); }), "");
  const auto step = [&] {
    training.optimizer().zero_grad();
    training.optimizer().step();
  };
  EXPECT_EQ(printed([&] {
              step();
              step();
            }),
            "torchamp: Optimizer::step: expected grads, got none, so nothing changes; run the "
            "backward, of a loss that reaches the optimizer's parameters, in scale_loss\n");
  Training silent(device(), Options(options).verbosity(0));
  EXPECT_EQ(printed([&] { silent.optimizer().step(); }), "");
}

TEST_P(WarningsTest, OfAnOptimizerOfAnotherModel) {
  Net net = make_net(device()), other = make_net(device());
  torch::optim::SGD sgd(other->parameters(), 0.1);
  EXPECT_EQ(printed([&] { initialize(net, sgd, level()); }),
            "torchamp: initialize: an optimizer steps no parameter of the models; give initialize "
            "the model whose parameters() the optimizer was made of\n");
  EXPECT_EQ(printed([&] { initialize(other, sgd, level()); }), "");
}

TORCHAMP_AT_LEVELS(WarningsTest, OptLevel::O1, OptLevel::O2);

/// A classifier that ends in a sigmoid, or in logits.
struct ProbabilityImpl : torch::nn::Module {
  explicit ProbabilityImpl(bool is_probability) : is_probability(is_probability) {}
  Tensor forward(const Tensor& x) {
    const Tensor logits = linear(x);
    return is_probability ? logits.sigmoid().squeeze(1) : logits.squeeze(1);
  }

  bool is_probability;
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 1));
};
TORCH_MODULE(Probability);

class CrossEntropyTest : public LevelTest {};

TEST_P(CrossEntropyTest, OfASigmoidIn16BitsIsFound) {
  for (const bool is_probability : {true, false}) {
    Probability net(is_probability);
    net->to(device());
    auto model = initialize(net, quiet(level()));
    const Tensor output = model(make_batch(device()).data);
    const Tensor probability = is_probability ? output : output.sigmoid();
    const Tensor loss = at::binary_cross_entropy(probability, at::ones_like(probability));
    const bool is_low_precision = is_probability && level() != OptLevel::O0;
    EXPECT_EQ(core::has_cross_entropy_of_16_bit_sigmoid(loss * 0.5 + output.mean()),
              is_low_precision);
  }
}

TORCHAMP_AT_LEVELS(CrossEntropyTest, OptLevel::O0, OptLevel::O2, OptLevel::O5);

}  // namespace
}  // namespace torchamp
