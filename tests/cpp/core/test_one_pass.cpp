// Fused optimizers under initialize: skipping on the device, steps without master grads, clipping.
#include <torchamp/clip.h>
#include <torchamp/optim/adam.h>

#include <cmath>

#include "core/param.h"
#include "frontend/session.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

/// A network trained with FusedAdamW.
struct FusedTraining : TrainingOf<optim::FusedAdamW> {
  FusedTraining(at::Device device, const Options& options)
      : TrainingOf(device, options, optim::FusedAdamWOptions(0.01).eps(1e-4)) {}

  core::OptimizerState& state() { return *optimizer().amp()->session().optimizers()[0].state; }
  /// The model, the masters and the optimizer state.
  std::vector<Tensor> everything() {
    std::vector<Tensor> found = net->parameters();
    for (const auto& param : state().params()) {
      found.push_back(param->master);
      const auto state = own.state().find(param->model.unsafeGetTensorImpl());
      if (state == own.state().end()) continue;
      const auto& kept = static_cast<const optim::FusedParamState&>(*state->second);
      for (const char* name : {"exp_avg", "exp_avg_sq", "step"}) found.push_back(kept.get(name));
    }
    return clones(found);
  }
};

class OnePassTest : public LevelTest {
 protected:
  static Options eager() { return quiet(level()).loss_scale("dynamic"); }
  static Options lazy() { return eager().materialize_master_grads(false); }
};

TEST_P(OnePassTest, WithoutMasterGradsTheNumbersAreTheSame) {
  FusedTraining made(device(), eager()), training(device(), lazy());
  for (int step = 0; step < 5; ++step) {
    for (FusedTraining* each : {&made, &training}) {
      each->optimizer().zero_grad();
      each->backward();
      EXPECT_EQ(each->state().grads().one_pass().has_grads(), each == &training);
      EXPECT_TRUE(each->optimizer().step());
    }
    EXPECT_TRUE(same_bits(training.everything(), made.everything())) << step;
  }
}

TEST_P(OnePassTest, AnOverflowSkips) {
  for (const Options& options : {eager(), lazy()}) {
    FusedTraining training(device(), options);
    training.backward();
    training.optimizer().step();
    const auto before = training.everything();
    training.optimizer().zero_grad();
    training.overflow();
    EXPECT_EQ(training.optimizer().step(), result_of_skipped(training.own, device()));
    EXPECT_TRUE(same_bits(training.everything(), before));
    EXPECT_EQ(training.scaler().loss_scale(), 32768);
    training.optimizer().zero_grad();
    training.backward();
    training.optimizer().step();
    EXPECT_FALSE(same_bits(training.everything(), before));
  }
}

TEST_P(OnePassTest, EveryAccessFindsGrads) {
  FusedTraining training(device(), lazy());
  training.backward();
  const auto masters = training.optimizer().master_params();
  for (size_t i = 0; i < masters.size(); ++i) {
    EXPECT_TRUE(masters[i].grad().defined());
    EXPECT_TRUE(masters[i].grad().is_same(training.net->parameters()[i].grad())) << "one tensor";
  }
  EXPECT_FALSE(training.state().grads().one_pass().is_on());
}

TORCHAMP_AT_LEVELS(OnePassTest, OptLevel::O2, OptLevel::O5);

class DisabledTest : public DeviceTest {};

TEST_P(DisabledTest, GradsAreClippedAllTheSame) {
  FusedTraining training(device(), quiet(OptLevel::O2).enabled(false));
  training.backward();
  clip_grad_norm_(training.optimizer(), 0.01);
  double squares = 0;
  for (const Tensor& param : training.net->parameters()) {
    squares += param.grad().square().sum().item<double>();
  }
  EXPECT_NEAR(std::sqrt(squares), 0.01, 1e-5);
}

TORCHAMP_ON_EACH_DEVICE(DisabledTest);

}  // namespace
}  // namespace torchamp
