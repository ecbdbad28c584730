#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/rmsprop.h>
#include <torch/serialize.h>
#include <torchamp/clip.h>
#include <torchamp/optim/adam.h>
#include <torchamp/optim/sgd.h>

#include <cmath>
#include <functional>
#include <sstream>

#include "core/param.h"
#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

class OptimizerTest : public DeviceTest {
 protected:
  static Training train_at(OptLevel level) { return {device(), quiet(level)}; }
};

/// Of the parameters in 16 bits.
std::vector<Tensor> masters_of(const Net& net) {
  std::vector<Tensor> all;
  for (const Tensor& param : net->parameters()) {
    const auto known = core::param_of(param);
    if (known->has_master()) all.push_back(known->master);
  }
  return clones(all);
}

template <class O>
void expect_own_steps_are_told(at::Device device) {
  for (const OptLevel level : {OptLevel::O2, OptLevel::O5}) {
    TrainingOf<O> run(device, level);
    run.backward();
    run.optimizer().step();
    const auto before = masters_of(run.net);
    run.backward();
    run.own.step();
    for (const std::function<void()>& look : std::vector<std::function<void()>>{
             [&] { run.amped.model(run.batch.data); },
             [&] { scale_loss(at::ones({}), run.optimizer()).finish(); },
             [&] { run.optimizer().step(); },
             [&] { run.optimizer().zero_grad(); },
             [&] { run.optimizer().master_params(); },
         }) {
      const std::string message = message_of(look);
      EXPECT_TRUE(contains(message, "call step() of the one that initialize returned")) << message;
    }
    EXPECT_TRUE(same_bits(masters_of(run.net), before));
  }
}

TEST_P(OptimizerTest, StepsOfTheWrappedOptimizerAreToldAndMastersAreIntact) {
  expect_own_steps_are_told<torch::optim::Adam>(device());
  expect_own_steps_are_told<torch::optim::RMSprop>(device());
}

TEST_P(OptimizerTest, ALoadOfTheWrappedOptimizerAndTheNetIsNoStep) {
  using Run = TrainingOf<torch::optim::Adam>;
  Run saved(device(), OptLevel::O2), fresh(device(), OptLevel::O2);
  saved.backward();
  saved.optimizer().step();
  std::stringstream file;
  torch::save(saved.own, file);
  for (Run* run : {&saved, &fresh}) {
    for (int times = 0; times < 2; ++times) {
      file.seekg(0);
      torch::load(run->own, file);
      for (const Tensor& param : run->net->parameters()) param.detach().mul_(0.5);
      EXPECT_EQ(message_of([&] { run->backward(); }), "no error");
      EXPECT_TRUE(run->optimizer().step());
    }
  }
}

TEST_P(OptimizerTest, APrunedParameterAndItsErasedStateAreNoStep) {
  TrainingOf<torch::optim::Adam> run(device(), OptLevel::O2);
  run.backward();
  run.optimizer().step();
  for (const Tensor& param : run.net->parameters()) {
    param.detach().mul_(0.5);
    run.own.state().erase(param.unsafeGetTensorImpl());
    EXPECT_EQ(message_of([&] { run.backward(); }), "no error");
  }
  EXPECT_TRUE(run.optimizer().step());
}

TEST_P(OptimizerTest, AStepOfAWrappedFusedOptimizerThrowsAndChangesNothing) {
  TrainingOf<optim::FusedAdam> run(device(), OptLevel::O2);
  run.backward();
  const auto masters = masters_of(run.net), params = clones(run.net->parameters());
  EXPECT_TRUE(contains(message_of([&] { run.own.step(); }),
                       "FusedAdam: expected steps of the torchamp::Optimizer that initialize "
                       "returned, got one of the optimizer that it was given"));
  EXPECT_TRUE(same_bits(masters_of(run.net), masters));
  EXPECT_TRUE(same_bits(run.net->parameters(), params));
  EXPECT_TRUE(run.optimizer().step());
}

/// LibTorch's SGD counts no steps.
TEST_P(OptimizerTest, StepsOfAWrappedSGDAreWarnedOf) {
  for (const bool steps_ours : {false, true}) {
    TrainingOf<torch::optim::SGD> run(device(), OptLevel::O2);
    const Logged logged;
    for (int step = 0; step < 4; ++step) {
      run.backward();
      steps_ours ? static_cast<void>(run.optimizer().step()) : static_cast<void>(run.own.step());
    }
    EXPECT_EQ(logged.text(),
              steps_ours ? ""
                         : "scale_loss: expected step() of the optimizer that initialize returned, "
                           "got a second backward without one, and parameters that the program has "
                           "written; the wrapped optimizer's step() steps 16-bit parameters, and "
                           "does not skip after an overflow\n");
  }
}

/// Also by grads that are still to be unscaled.
TEST_P(OptimizerTest, ClippingTakesEveryNorm) {
  for (const bool materializes : {true, false}) {
    for (const double norm_type : {2.0, 1.0, 3.0, HUGE_VAL}) {
      Net net = make_net(device());
      optim::FusedSGD sgd(net->parameters(), 0.1);
      const auto options = quiet(OptLevel::O2).materialize_master_grads(materializes);
      auto amped = initialize(net, sgd, options);
      const Batch batch = make_batch(device());
      const auto norm_of_grads = [&] {
        std::vector<Tensor> flat;
        for (const Tensor& master : master_params(amped.optimizer)) {
          flat.push_back(master.grad().flatten().to(at::kDouble));
        }
        return at::linalg_vector_norm(at::cat(flat), norm_type).item<double>();
      };
      scale_loss(loss_of(amped.model(batch.data), batch.target), amped.optimizer).backward();
      const double norm = clip_grad_norm_(amped.optimizer, 1e-3, norm_type).item<double>();
      EXPECT_NEAR(norm_of_grads(), 1e-3, 1e-6) << norm_type;
      EXPECT_GT(norm, 1e-3);
    }
  }
}

TEST_P(OptimizerTest, ClippingAtO0IsLibTorchs) {
  for (const double norm_type : {2.0, 1.0, 3.0, HUGE_VAL}) {
    Net ours = make_net(device()), theirs = make_net(device());
    torch::optim::SGD sgd(ours->parameters(), 0.1);
    auto amped = initialize(ours, sgd, quiet(OptLevel::O0));
    const Batch batch = make_batch(device());
    scale_loss(loss_of(amped.model(batch.data), batch.target), amped.optimizer).backward();
    loss_of(theirs->forward(batch.data), batch.target).backward();
    const double expected =
        torch::nn::utils::clip_grad_norm_(theirs->parameters(), 1e-3, norm_type);
    EXPECT_EQ(clip_grad_norm_(amped.optimizer, 1e-3, norm_type).item<double>(), expected);
    for (size_t i = 0; i < ours->parameters().size(); ++i) {
      EXPECT_TRUE(same_bits(ours->parameters()[i].grad(), theirs->parameters()[i].grad()))
          << norm_type;
    }
  }
}

TEST_P(OptimizerTest, IsAHandle) {
  Training training = train_at(OptLevel::O2);
  const Optimizer copy = training.optimizer();
  torch::optim::Optimizer& wrapped = copy.wrapped();
  EXPECT_EQ(&wrapped, &training.own);
  EXPECT_EQ(&training.optimizer().param_groups(), &training.own.param_groups());
}

TORCHAMP_ON_EACH_DEVICE(OptimizerTest);

}  // namespace
}  // namespace torchamp
