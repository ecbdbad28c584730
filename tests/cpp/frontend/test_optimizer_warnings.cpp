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

TEST_P(WarningsTest, OfStepsWithoutABackward) {
  const Options options = Options(level()).loss_scale(1024.0);
  Training training(device(), options);
  EXPECT_EQ(logged([&] { training.step(); }), "");
  const auto step = [&] {
    training.optimizer().zero_grad();
    training.optimizer().step();
  };
  EXPECT_EQ(logged([&] {
              step();
              step();
            }),
            "Optimizer::step: expected grads, got none, so nothing changes; run the "
            "backward, of a loss that reaches the optimizer's parameters, in scale_loss\n");
  Training silent(device(), Options(options).verbosity(0));
  EXPECT_EQ(logged([&] { silent.optimizer().step(); }), "");
}

TEST_P(WarningsTest, OfAnOptimizerOfAnotherModel) {
  Net net = make_net(device()), other = make_net(device());
  torch::optim::SGD own(net->parameters(), 0.1), sgd(other->parameters(), 0.1);
  EXPECT_EQ(logged([&] {
              (void)initialize(net, {own, sgd}, level());
            }),
            "initialize: expected optimizers[1] to have parameters of models, got one "
            "that has none; pass all models that it trains\n");
}

TEST_P(WarningsTest, OfASecondOptimizerOfTheModel) {
  if (level() == OptLevel::O1) return;  // grads are unscaled
  const std::string warning =
      "zero_grad: expected the model to be written by the optimizer that initialize "
      "returned, got writes after a backward whose grads no step has used; these grads are scaled. "
      "If a second optimizer steps the model, make one optimizer of both, with two groups; if the "
      "program uses the grads itself, set materialize_master_grads to true\n";
  for (const bool materializes : {false, true}) {
    Net net = make_net(device());
    const Batch batch = make_batch(device());
    optim::FusedSGD first(net->parameters(), 0.1);
    torch::optim::SGD second(net->parameters(), 0.1);
    auto [model, optimizer] = initialize(
        net, first, Options(level()).loss_scale(128.0).materialize_master_grads(materializes));
    const auto backward = [&, &model = model, &optimizer = optimizer] {
      optimizer.zero_grad();
      scale_loss(loss_of(model(batch.data), batch.target), optimizer).backward();
    };
    EXPECT_EQ(logged([&] {
                backward();
                backward();
                second.step();
                backward();
                optimizer.step();
                backward();
              }),
              materializes ? "" : warning);
  }
}

TORCHAMP_AT_LEVELS(WarningsTest, OptLevel::O1, OptLevel::O2);

}  // namespace
}  // namespace torchamp
