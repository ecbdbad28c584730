// Mistakes that may be meant: one message each.
#include <torchamp/optim/sgd.h>

#include <functional>

#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

class WarningsTest : public LevelTest {
 protected:
  static std::string logged(const std::function<void()>& call) {
    const Logged logged;
    call();
    return logged.text();
  }
};

TEST_P(WarningsTest, OfStochasticRoundingBesideMasters) {
  Net net = make_net(device());
  torch::optim::SGD plain(net->first->parameters(), 0.1);
  optim::FusedSGD sgd(net->last->parameters(), optim::FusedSGDOptions(0.1),
                      optim::StorageOptions().stochastic_rounding(true));
  const std::string text =
      "initialize: expected optimizers[1] without stochastic_rounding, which is of bfloat16 "
      "parameters that have no masters, got one with it, which changes nothing; set "
      "master_weights to false, or leave it out\n";
  EXPECT_EQ(logged([&] {
              (void)initialize(net, {plain, sgd}, level());
            }),
            level() == OptLevel::O2 ? text : "");
}

TEST_P(WarningsTest, OfAFirstStepByGradsThatNoScaleLossHasScaled) {
  const std::string text =
      "Optimizer::step: expected a backward in scale_loss before the first step, since the loss "
      "scale is dynamic, got grads of one outside of it, in which small numbers are lost to 16 "
      "bits; run it in scale_loss. If the program scales losses itself, give initialize a "
      "loss_scale of 1\n";
  const auto warned = [&](const Options& options, bool is_scaled) {
    Training training(device(), options);
    return logged([&] {
      for (int i = 0; i < 2; ++i) {
        if (is_scaled && i == 0) scale_loss(training.loss(), training.optimizer()).backward();
        if (!is_scaled || i > 0) training.loss().backward();
        training.optimizer().step();
        training.optimizer().zero_grad();
      }
    });
  };
  EXPECT_EQ(warned(Options(level()), false), text);
  EXPECT_EQ(warned(Options(level()).loss_scale(1), false), "");
  EXPECT_EQ(warned(Options(level()), true).find(text), std::string::npos);
}

TORCHAMP_AT_LEVELS(WarningsTest, OptLevel::O1, OptLevel::O2);

}  // namespace
}  // namespace torchamp
