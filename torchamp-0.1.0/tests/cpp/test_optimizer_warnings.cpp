// Mistakes that may be meant: one line on std::clog each.
#include <functional>
#include <iostream>
#include <sstream>

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

}  // namespace
}  // namespace torchamp
