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

/// The reference is float32 masters, a float16 model and a scale, written by hand with LibTorch.
TEST_P(OptimizerTest, AStepAtO2IsWhatOneWouldWriteByHand) {
  Training training(device(), quiet(OptLevel::O2).loss_scale(1024.0));
  Net net = make_net(device());
  std::vector<Tensor> masters;
  for (const auto& param : net->named_parameters()) {
    masters.push_back(param->detach().clone().set_requires_grad(true));
    if (contains(param.key(), "norm")) continue;
    Tensor(param.value()).set_data(param->detach().to(at::kHalf));
  }
  torch::optim::SGD sgd(masters, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    training.step();
    net->zero_grad();
    const Tensor output = net->forward(training.batch.data.to(at::kHalf)).to(at::kFloat);
    loss_of(output, training.batch.target).mul(1024).backward();
    const auto params = net->parameters();
    for (size_t i = 0; i < params.size(); ++i) {
      masters[i].mutable_grad() = params[i].grad().to(at::kFloat).div(1024);
    }
    sgd.step();
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < params.size(); ++i) Tensor(params[i]).copy_(masters[i]);
    ASSERT_TRUE(same_bits(training.optimizer().master_params(), masters)) << step;
    ASSERT_TRUE(same_bits(training.net->parameters(), net->parameters())) << step;
  }
}

/// A net, and an optimizer that the program steps itself after each backward.
template <class O>
struct SteppedByTheProgram {
  explicit SteppedByTheProgram(at::Device device, OptLevel level)
      : net(make_net(device)),
        batch(make_batch(device)),
        optimizer(net->parameters(), 0.1),
        amped(initialize(net, optimizer, Options(level))) {}

  void backward() {
    scale_loss(loss_of(amped.model(batch.data), batch.target), amped.optimizer).backward();
  }
  std::vector<Tensor> masters() const {
    std::vector<Tensor> all;
    for (const Tensor& param : net->parameters()) {
      const auto known = core::param_of(param);
      if (known->has_master()) all.push_back(known->master);
    }
    return clones(all);
  }

  Net net;
  Batch batch;
  O optimizer;
  Amped<Net> amped;
};

template <class O>
void expect_own_steps_are_told(at::Device device) {
  for (const OptLevel level : {OptLevel::O2, OptLevel::O5}) {
    SteppedByTheProgram<O> run(device, level);
    run.backward();
    run.amped.optimizer.step();
    const auto before = run.masters();
    run.backward();
    run.optimizer.step();
    for (const std::function<void()>& look : std::vector<std::function<void()>>{
             [&] { run.amped.model(run.batch.data); },
             [&] { scale_loss(at::ones({}), run.amped.optimizer).finish(); },
             [&] { run.amped.optimizer.step(); },
             [&] { run.amped.optimizer.zero_grad(); },
             [&] { run.amped.optimizer.master_params(); },
         }) {
      const std::string message = message_of(look);
      EXPECT_TRUE(contains(message, "call step() of the one that initialize returned")) << message;
    }
    EXPECT_TRUE(same_bits(run.masters(), before));
  }
}

TEST_P(OptimizerTest, StepsOfTheWrappedOptimizerAreToldAndMastersAreIntact) {
  expect_own_steps_are_told<torch::optim::Adam>(device());
  expect_own_steps_are_told<torch::optim::RMSprop>(device());
}

TEST_P(OptimizerTest, ALoadOfTheWrappedOptimizerAndTheNetIsNoStep) {
  using Run = SteppedByTheProgram<torch::optim::Adam>;
  Run saved(device(), OptLevel::O2), fresh(device(), OptLevel::O2);
  saved.backward();
  saved.amped.optimizer.step();
  std::stringstream file;
  torch::save(saved.optimizer, file);
  for (Run* run : {&saved, &fresh}) {
    for (int times = 0; times < 2; ++times) {
      file.seekg(0);
      torch::load(run->optimizer, file);
      for (const Tensor& param : run->net->parameters()) param.detach().mul_(0.5);
      EXPECT_EQ(message_of([&] { run->backward(); }), "no error");
      EXPECT_TRUE(run->amped.optimizer.step());
    }
  }
}

TEST_P(OptimizerTest, APrunedParameterAndItsErasedStateAreNoStep) {
  SteppedByTheProgram<torch::optim::Adam> run(device(), OptLevel::O2);
  run.backward();
  run.amped.optimizer.step();
  for (const Tensor& param : run.net->parameters()) {
    param.detach().mul_(0.5);
    run.optimizer.state().erase(param.unsafeGetTensorImpl());
    EXPECT_EQ(message_of([&] { run.backward(); }), "no error");
  }
  EXPECT_TRUE(run.amped.optimizer.step());
}

TEST_P(OptimizerTest, AStepOfAWrappedFusedOptimizerThrowsAndChangesNothing) {
  SteppedByTheProgram<optim::FusedAdam> run(device(), OptLevel::O2);
  run.backward();
  const auto masters = run.masters(), params = clones(run.net->parameters());
  EXPECT_TRUE(contains(message_of([&] { run.optimizer.step(); }),
                       "FusedAdam: expected steps of the torchamp::Optimizer that initialize "
                       "returned, got one of the optimizer that it was given"));
  EXPECT_TRUE(same_bits(run.masters(), masters));
  EXPECT_TRUE(same_bits(run.net->parameters(), params));
  EXPECT_TRUE(run.amped.optimizer.step());
}

/// LibTorch's SGD counts no steps.
TEST_P(OptimizerTest, StepsOfAWrappedSGDAreWarnedOf) {
  for (const bool steps_ours : {false, true}) {
    SteppedByTheProgram<torch::optim::SGD> run(device(), OptLevel::O2);
    const Logged logged;
    for (int step = 0; step < 4; ++step) {
      run.backward();
      steps_ours ? static_cast<void>(run.amped.optimizer.step())
                 : static_cast<void>(run.optimizer.step());
    }
    EXPECT_EQ(logged.text(),
              steps_ours ? ""
                         : "scale_loss: expected step() of the optimizer that initialize returned, "
                           "got a second backward without one, and parameters that the program has "
                           "written; the wrapped optimizer's step() steps 16-bit parameters, and "
                           "does not skip after an overflow\n");
  }
}

TEST_P(OptimizerTest, ZeroGradReachesModelAndMasters) {
  for (const bool set_to_none : {true, false}) {
    Training training = train_at(OptLevel::O2);
    { scale_loss(training.loss(), training.optimizer()).backward(); }
    training.optimizer().zero_grad(set_to_none);
    auto params = training.optimizer().master_params();
    const auto of_model = training.net->parameters();
    params.insert(params.end(), of_model.begin(), of_model.end());
    for (const Tensor& param : params) {
      EXPECT_EQ(param.grad().defined(), !set_to_none);
      EXPECT_TRUE(set_to_none || param.grad().eq(0).all().item<bool>());
    }
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
  EXPECT_EQ(&wrapped, &training.sgd);
  EXPECT_EQ(&training.optimizer().param_groups(), &training.sgd.param_groups());
}

TORCHAMP_ON_EACH_DEVICE(OptimizerTest);

}  // namespace
}  // namespace torchamp
