// Handles and optimizers that a program moves, or destroys too early.
#include <torchamp/optim/adam.h>

#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

constexpr const char* kDestroyed =
    "Optimizer: expected the optimizer that initialize was given to hold its parameters, but it "
    "was destroyed, moved or emptied; keep it where it is, or let initialize own it: "
    "initialize(model, std::move(optimizer), opt_level)";

class LifetimesTest : public LevelTest {
 protected:
  Amped<Net> make_amped() const {
    Net net = make_net(device());
    torch::optim::Adam adam(net->parameters(), 1e-2);
    return initialize(net, std::move(adam), quiet(level()));
  }
  float loss_after_a_step(Amped<Net>& amped) const {
    const Batch batch = make_batch(device());
    const auto loss = [&] { return loss_of(amped.model(batch.data), batch.target); };
    amped.optimizer.zero_grad();
    scale_loss(loss(), amped.optimizer).backward();
    EXPECT_TRUE(amped.optimizer.step());
    return loss().item().toFloat();
  }
};

TEST_P(LifetimesTest, AFunctionMayReturnWhatOwnsItsOptimizer) {
  Training training(device(), quiet(level()));
  auto amped = make_amped();
  const float first = loss_after_a_step(amped);
  EXPECT_LT(loss_after_a_step(amped), first);
}

TEST_P(LifetimesTest, AnOptimizerMayBeGivenAsAPointer) {
  Net net = make_net(device());
  std::unique_ptr<torch::optim::Optimizer> sgd =
      std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
  auto amped = initialize(net, std::move(sgd), quiet(level()));
  const float first = loss_after_a_step(amped);
  EXPECT_LT(loss_after_a_step(amped), first);
  EXPECT_EQ(message_of([&] {
              initialize(net, std::shared_ptr<torch::optim::Optimizer>(), quiet(level()));
            }),
            "initialize: expected an optimizer, got a null pointer");
}

TEST_P(LifetimesTest, WhatWasMovedFromIsAnotherHandle) {
  auto amped = make_amped();
  auto moved = std::move(amped);
  const float first = loss_after_a_step(moved);
  EXPECT_LT(loss_after_a_step(amped), first);  // NOLINT(bugprone-use-after-move)
}

TEST_P(LifetimesTest, AMovedOptimizerIsRefused) {
  Training training(device(), quiet(level()));
  const torch::optim::SGD elsewhere(std::move(training.sgd));
  const Tensor loss = training.loss();
  EXPECT_EQ(message_of([&] { scale_loss(loss, training.optimizer()).backward(); }), kDestroyed);
  EXPECT_EQ(message_of([&] { training.optimizer().step(); }), kDestroyed);
}

TEST_P(LifetimesTest, ANullModelIsRefused) {
  EXPECT_EQ(message_of([&] { initialize(std::shared_ptr<NetImpl>(), quiet(level())); }),
            "initialize: expected modules, got a null pointer as models[0]");
}

TORCHAMP_AT_LEVELS(LifetimesTest, OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O5);

class MastersLifetimeTest : public LevelTest {};

TEST_P(MastersLifetimeTest, ADestroyedOptimizerIsRefused) {
  Net net = make_net(device());
  std::optional<torch::optim::SGD> sgd(std::in_place, net->parameters(), 0.1);
  std::optional<optim::FusedAdam> adam(std::in_place, net->parameters());
  auto of_sgd = initialize(net, *sgd, quiet(level()));
  sgd.reset();
  EXPECT_EQ(message_of([&] { of_sgd.optimizer.step(); }), kDestroyed);
  EXPECT_EQ(message_of([&] { of_sgd.optimizer.zero_grad(); }), kDestroyed);
  net->to(at::kFloat);
  auto of_adam = initialize(net, *adam, quiet(level()));
  adam.reset();
  EXPECT_EQ(message_of([&] { of_adam.optimizer.step(); }), kDestroyed);
  EXPECT_TRUE(of_adam.model(make_batch(device()).data).defined()) << "may be evaluated";
}

TORCHAMP_AT_LEVELS(MastersLifetimeTest, OptLevel::O2, OptLevel::O5);

}  // namespace
}  // namespace torchamp
