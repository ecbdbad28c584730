// LibTorch's own code with the optimizer that initialize returns.
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/optim/schedulers/step_lr.h>

#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

double lr_of(torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups()[0].options().get_lr();
}

class LibTorchTest : public DeviceTest {
 protected:
  static Training train_at(OptLevel level) { return {device(), quiet(level)}; }
};

TEST_P(LibTorchTest, StepLRSetsTheRateOfTheNextStep) {
  for (const OptLevel level : {OptLevel::O1, OptLevel::O2, OptLevel::O5}) {
    Training training = train_at(level), by_hand = train_at(level);
    torch::optim::StepLR scheduler(training.optimizer().wrapped(), /*step_size=*/1, /*gamma=*/0.5);
    scheduler.step();
    for (int step = 0; step < 3; ++step) {
      by_hand.own.param_groups()[0].options().set_lr(0.1 * std::pow(0.5, step));
      training.step();
      by_hand.step();
      scheduler.step();
      EXPECT_TRUE(same_bits(training.net->parameters(), by_hand.net->parameters())) << step;
    }
    EXPECT_DOUBLE_EQ(lr_of(training.own), 0.0125);
  }
}

TEST_P(LibTorchTest, ASchedulerCreatedBeforeInitializeWorks) {
  Net net = make_net(device());
  torch::optim::SGD sgd(net->parameters(), 0.1);
  torch::optim::StepLR scheduler(sgd, /*step_size=*/1, /*gamma=*/0.0);
  auto amped = initialize(net, sgd, quiet(OptLevel::O2));
  scheduler.step();
  scheduler.step();
  const auto before = clones(net->parameters());
  const Batch batch = make_batch(device());
  { scale_loss(loss_of(amped.model(batch.data), batch.target), amped.optimizer).backward(); }
  EXPECT_TRUE(amped.optimizer.step());
  EXPECT_TRUE(same_bits(net->parameters(), before));
}

TEST_P(LibTorchTest, ReduceLROnPlateauSetsTheRateOfTheNextStep) {
  Training training = train_at(OptLevel::O2), by_hand = train_at(OptLevel::O2);
  torch::optim::ReduceLROnPlateauScheduler scheduler(
      training.optimizer().wrapped(), torch::optim::ReduceLROnPlateauScheduler::min, /*factor=*/0.5,
      /*patience=*/0);
  for (const float metric : {1.0f, 0.5f, 0.5f}) scheduler.step(metric);
  EXPECT_DOUBLE_EQ(lr_of(training.own), 0.05);
  by_hand.own.param_groups()[0].options().set_lr(0.05);
  training.step();
  by_hand.step();
  EXPECT_TRUE(same_bits(training.net->parameters(), by_hand.net->parameters()));
}

TEST_P(LibTorchTest, AClosureRunsTheBackwardAndIsSteppedByIt) {
  for (const OptLevel level :
       {OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O4, OptLevel::O5}) {
    Training closure = train_at(level), plain = train_at(level);
    for (const bool overflows : {false, true, false}) {
      const double factor = overflows ? INFINITY : 1;
      plain.optimizer().zero_grad();
      const Tensor expected = plain.loss();
      scale_loss(expected * factor, plain.optimizer()).backward();
      plain.optimizer().step();
      const Tensor found = closure.optimizer().step([&] {
        closure.optimizer().zero_grad();
        const Tensor loss = closure.loss();
        scale_loss(loss * factor, closure.optimizer()).backward();
        return loss;
      });
      EXPECT_TRUE(same_bits(found.detach(), expected.detach()));
      EXPECT_TRUE(same_bits(closure.net->parameters(), plain.net->parameters())) << level;
    }
  }
}

TEST_P(LibTorchTest, AClosureMayRunItsOwnBackwardWhereNothingIsScaled) {
  for (const OptLevel level : {OptLevel::O0, OptLevel::O3, OptLevel::O4}) {
    Training closure = train_at(level), plain = train_at(level);
    plain.step();
    closure.optimizer().step([&] {
      closure.optimizer().zero_grad();
      const Tensor loss = closure.loss();
      loss.backward();
      return loss;
    });
    EXPECT_TRUE(same_bits(closure.net->parameters(), plain.net->parameters())) << level;
  }
}

struct Fit {
  explicit Fit(at::Device device) : net(make_net(device)), batch(make_batch(device)) {}

  /// The loss after a few steps, each of which calls `closure` several times.
  template <class Step, class Forward>
  float run(const Step& step, const Forward& forward) {
    const auto closure = [&] {
      lbfgs.zero_grad();
      const Tensor loss = loss_of(forward(batch.data), batch.target);
      loss.backward();
      return loss;
    };
    for (int i = 0; i < 5; ++i) step(closure);
    return loss_of(forward(batch.data), batch.target).item().toFloat();
  }

  Net net;
  Batch batch;
  torch::optim::LBFGS lbfgs{net->parameters(), torch::optim::LBFGSOptions(0.5)};
};

TEST_P(LibTorchTest, LBFGSFitsAsItDoesAlone) {
  Fit alone(device());
  const float expected = alone.run([&](const auto& closure) { alone.lbfgs.step(closure); },
                                   [&](const Tensor& data) { return alone.net(data); });
  Fit amped(device());
  auto [model, optimizer] = initialize(amped.net, amped.lbfgs, quiet(OptLevel::O0));
  const float got = amped.run([&o = optimizer](const auto& closure) { o.step(closure); },
                              [&m = model](const Tensor& data) { return m(data); });
  EXPECT_EQ(got, expected);
  EXPECT_LT(got, 0.2f);
}

/// The host has asked whether to skip, so it may drop them on every device.
TEST_P(LibTorchTest, GradsThatASkippedStepHasLeftAreNoneOfTheNext) {
  Net net = make_net(device());
  const auto params = net->parameters();
  torch::optim::RMSprop rmsprop(params, 0.01);
  auto [model, optimizer] = initialize(net, rmsprop, quiet(OptLevel::O1));
  const auto step_after = [&o = optimizer](const Tensor& loss) {
    scale_loss(loss, o).backward();
    return o.step();
  };
  EXPECT_FALSE(step_after(params[0].sum() + params[1].sum() * INFINITY));
  EXPECT_TRUE(step_after(params[0].sum()));
  EXPECT_EQ(rmsprop.state().count(params[0].unsafeGetTensorImpl()), 1u);
  EXPECT_EQ(rmsprop.state().count(params[1].unsafeGetTensorImpl()), 0u);
}

TEST_P(LibTorchTest, LBFGSFitsAtEveryLevelByAFixedScale) {
  for (const char* level : {"O0", "O1", "O2", "O4", "O5"}) {
    Fit fit(device());
    auto amped = initialize(fit.net, fit.lbfgs, Options(level).loss_scale(64.0).verbosity(0));
    const auto closure = [&] {
      amped.optimizer.zero_grad();
      const Tensor loss = loss_of(amped.model(fit.batch.data), fit.batch.target);
      scale_loss(loss, amped.optimizer).backward();
      return loss;
    };
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(amped.optimizer.step(closure).defined());
    EXPECT_LT(closure().item<float>(), 0.4f) << level;
    const Tensor master = amped.optimizer.master_params().front();
    const Tensor& param = fit.net->first->weight;
    EXPECT_TRUE(same_bits(param.detach(), master.detach().to(param.scalar_type()))) << level;
  }
}

TORCHAMP_ON_EACH_DEVICE(LibTorchTest);

}  // namespace
}  // namespace torchamp
