#include <ATen/ops/mm.h>
#include <torchamp/telemetry.h>

#include <stdexcept>

#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

/// The levels with a dynamic scale, by default or by option.
class DynamicTest : public LevelTest {
 protected:
  static Options options() { return quiet(level()).loss_scale("dynamic"); }
};

TEST_P(DynamicTest, AnOverflowAnywhereSkipsTheStepAndLeavesNoTrace) {
  Training training(device(), options());
  training.step();
  for (size_t bad = 0; bad < training.net->parameters().size(); ++bad) {
    const auto masters = clones(training.optimizer().master_params());
    const auto params = clones(training.net->parameters());
    const auto momenta = training.momenta();
    const double scale = training.scaler().loss_scale();
    training.optimizer().zero_grad();
    {
      scale_loss scaled_loss(training.loss(), training.optimizer());
      scaled_loss.backward();
      training.net->parameters()[bad].grad().view({-1})[0].fill_(bad % 2 ? NAN : INFINITY);
    }
    EXPECT_EQ(training.scaler().loss_scale(), scale / 2) << bad;
    EXPECT_EQ(training.scaler().state().growth_tracker, 0) << bad;
    EXPECT_FALSE(training.net->parameters()[bad].grad().isfinite().all().item<bool>()) << bad;
    EXPECT_FALSE(training.optimizer().step()) << bad;
    EXPECT_EQ(telemetry(training.optimizer()).skipped_steps, static_cast<int64_t>(bad) + 1);
    EXPECT_TRUE(same_bits(training.optimizer().master_params(), masters)) << bad;
    EXPECT_TRUE(same_bits(training.net->parameters(), params)) << bad;
    EXPECT_TRUE(same_bits(training.momenta(), momenta)) << bad;
  }
  const auto params = clones(training.net->parameters());
  training.step();
  EXPECT_FALSE(same_bits(training.net->parameters(), params));
}

/// A backward does not overwrite what a later one still needs.
TEST_P(DynamicTest, ForwardsMayComeBeforeTheOtherLossesBackwards) {
  Training training(device(), options()), in_turn(device(), options());
  const Tensor first = training.loss(), second = training.loss();
  { scale_loss(first, training.optimizer()).backward(); }
  const Tensor third = training.loss();
  { scale_loss(second, training.optimizer()).backward(); }
  { scale_loss(third, training.optimizer()).backward(); }
  for (int i = 0; i < 3; ++i) scale_loss(in_turn.loss(), in_turn.optimizer()).backward();
  EXPECT_TRUE(same_bits(training.grads(), in_turn.grads()));
}

TEST_P(DynamicTest, AnExceptionPutsEverythingBack) {
  Training training(device(), options());
  { scale_loss(training.loss(), training.optimizer()).backward(); }
  const auto grads = training.grads();
  std::vector<Tensor> model_grads;
  for (const Tensor& param : training.net->parameters()) model_grads.push_back(param.grad());
  const ScaleState state = training.scaler().state();
  const auto backward_and_throw = [&] {
    scale_loss scaled_loss(training.loss(), training.optimizer());
    scaled_loss.backward();
    throw std::runtime_error("mine");
  };
  EXPECT_EQ(message_of(backward_and_throw), "mine");
  const auto throw_in_function = [&] {
    scale_loss(training.loss(), training.optimizer(), [](const Tensor& scaled_loss) {
      scaled_loss.backward();
      throw std::runtime_error("mine");
    });
  };
  EXPECT_EQ(message_of(throw_in_function), "mine");
  EXPECT_TRUE(same_bits(training.grads(), grads));
  for (size_t i = 0; i < model_grads.size(); ++i) {
    EXPECT_TRUE(training.net->parameters()[i].grad().is_same(model_grads[i])) << i;
  }
  EXPECT_EQ(training.scaler().state().loss_scale, state.loss_scale);
  EXPECT_EQ(training.scaler().state().growth_tracker, state.growth_tracker);
  EXPECT_TRUE(training.optimizer().step());
}

TEST_P(DynamicTest, TheFunctionIsTheGuard) {
  Training guard(device(), options()), function(device(), options());
  { scale_loss(guard.loss(), guard.optimizer()).backward(); }
  scale_loss(function.loss(), function.optimizer(),
             [](const Tensor& scaled_loss) { scaled_loss.backward(); });
  EXPECT_TRUE(same_bits(function.grads(), guard.grads()));
  EXPECT_EQ(function.scaler().state().growth_tracker, 1);
}

TEST_P(DynamicTest, FinishedEarlyItIsFinishedOnce) {
  Training training(device(), options());
  const auto finish_and_throw = [&] {
    scale_loss scaled_loss(training.loss(), training.optimizer());
    scaled_loss.backward();
    scaled_loss.finish();
    scaled_loss.finish();
    throw std::runtime_error("after it");
  };
  EXPECT_EQ(message_of(finish_and_throw), "after it");
  EXPECT_EQ(training.scaler().state().growth_tracker, 1);
  for (const Tensor& grad : training.grads()) EXPECT_TRUE(grad.defined());
  EXPECT_TRUE(training.optimizer().step());
}

/// Runs a whole backward during stack unwinding.
struct StepsWhenDestroyed {
  ~StepsWhenDestroyed() { scale_loss(training.loss(), training.optimizer()).backward(); }
  Training& training;
};

TEST_P(DynamicTest, AGuardInADestructorMindsOnlyItsOwnExceptions) {
  Training training(device(), options());
  const auto unwind = [&] {
    const StepsWhenDestroyed steps{training};
    throw std::runtime_error("older");
  };
  EXPECT_EQ(message_of(unwind), "older");
  EXPECT_EQ(training.scaler().state().growth_tracker, 1);
}

TEST_P(DynamicTest, AFixedScaleSkipsNothing) {
  Training training(device(), quiet(level()).loss_scale(128.0));
  {
    scale_loss scaled_loss(training.loss(), training.optimizer());
    scaled_loss.backward();
    training.net->last->bias.grad().fill_(INFINITY);
  }
  EXPECT_TRUE(training.optimizer().step());
  EXPECT_EQ(training.scaler().loss_scale(), 128);
}

TEST_P(DynamicTest, ASkippedStepIsReportedUnlessQuiet) {
  for (const int verbosity : {0, 1}) {
    Training training(device(), options().verbosity(verbosity));
    const Logged log;
    {
      scale_loss scaled_loss(training.loss(), training.optimizer());
      scaled_loss.backward();
      training.net->last->bias.grad().fill_(INFINITY);
    }
    training.optimizer().step();
    training.scaler().loss_scale();  // waits for the device
    telemetry(training.optimizer());
    const std::string skipped =
        "gradient overflow in loss 0, at last.bias: step skipped, loss scale now "
        "32768; this is normal before the first step, since the scale starts high\n";
    EXPECT_EQ(log.text(), verbosity == 0 ? "" : skipped);
  }
}

/// Whether the step of a loss times `factor` is taken.
bool step_of(Training& training, double factor) {
  training.optimizer().zero_grad();
  scale_loss(training.loss() * factor, training.optimizer()).backward();
  return training.optimizer().step();
}

TEST_P(DynamicTest, GradsThatAreAllZeroAreSteppedInSilence) {
  Training training(device(), options().verbosity(1));
  const Logged log;
  EXPECT_TRUE(step_of(training, 0.0));
  EXPECT_EQ(training.scaler().state().growth_tracker, 1);  // waits for the device
  telemetry(training.optimizer());
  EXPECT_EQ(log.text(), "");
}

TEST_P(DynamicTest, BackwardRunsOutsideOfAutocast) {
  Training training(device(), options());
  at::ScalarType mm_type = at::kHalf;
  training.net->last->weight.register_hook([&](const Tensor&) {
    mm_type = at::mm(training.batch.data, training.batch.data.t()).scalar_type();
  });
  { scale_loss(training.loss(), training.optimizer()).backward(); }
  EXPECT_EQ(mm_type, at::kFloat);
}

TEST_P(DynamicTest, FiftyModelsLeaveNothingBehind) {
  std::vector<std::weak_ptr<Amp>> amps;
  for (int i = 0; i < 50; ++i) {
    Training training(device(), options(), /*seed=*/i);
    training.step();
    EXPECT_TRUE(training.loss().isfinite().item<bool>()) << i;
    amps.push_back(training.amped.model.amp());
  }
  for (const auto& amp : amps) EXPECT_TRUE(amp.expired());
}

TEST_P(DynamicTest, AForwardWithoutGradsBeforeOneWithTakesNoGradsAway) {
  Training training(device(), options());
  {
    const torch::NoGradGuard no_grad;
    training.loss();
  }
  { scale_loss(training.loss(), training.optimizer()).backward(); }
  for (const Tensor& grad : training.grads()) EXPECT_TRUE(grad.defined());
}

TORCHAMP_AT_LEVELS(DynamicTest, OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3,
                   OptLevel::O4, OptLevel::O5);

}  // namespace
}  // namespace torchamp
