#include <torch/nn/utils/clip_grad.h>
#include <torchamp/logging.h>

#include <cmath>

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

TEST_P(OptimizerTest, SteppingTheWrappedOptimizerFindsNoGradsOfMasters) {
  Training training = train_at(OptLevel::O2);
  const Tensor& master = core::param_of(training.net->first->weight)->master;
  const Tensor before = master.detach().clone();
  training.overflow();
  training.sgd.step();
  EXPECT_TRUE(same_bits(master.detach(), before));
}

TEST_P(OptimizerTest, SteppingTheWrappedOptimizerAlwaysIsTold) {
  std::vector<std::string> told;
  Training training(device(), Options("O1"));
  const LogSink before = set_log_sink([&](LogLevel, const std::string& text) {
    if (contains(text, "backwards without one")) told.push_back(text);
  });
  for (int step = 0; step < 102; ++step) {
    { scale_loss(training.loss(), training.optimizer()).backward(); }
    training.sgd.step();
    training.sgd.zero_grad();
  }
  set_log_sink(before);
  EXPECT_EQ(told, std::vector<std::string>{
                      "scale_loss: expected step() of the optimizer that initialize returned, got "
                      "100 backwards without one; the wrapped optimizer's step() finds no grads of "
                      "masters, and does not skip after an overflow"});
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

TEST_P(OptimizerTest, GradsOfMasterParamsCanBeClipped) {
  Training training = train_at(OptLevel::O2);
  { scale_loss(training.loss(), training.optimizer()).backward(); }
  torch::nn::utils::clip_grad_norm_(master_params(training.optimizer()), 1e-3);
  const auto before = clones(training.optimizer().master_params());
  training.optimizer().step();
  double moved = 0;
  const auto after = training.optimizer().master_params();
  for (size_t i = 0; i < after.size(); ++i) {
    moved += (after[i] - before[i]).square().sum().item<double>();
  }
  EXPECT_NEAR(std::sqrt(moved), 0.1 * 1e-3, 1e-6);
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
