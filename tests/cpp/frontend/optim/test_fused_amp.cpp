// Fused optimizers under initialize.

#include <torch/serialize/archive.h>
#include <torchamp/optim/adam.h>
#include <torchamp/serialize.h>

#include <algorithm>
#include <sstream>

#include "fused_cases.h"
#include "net.h"

namespace torchamp {
namespace {

using at::Tensor;
using torch::optim::OptimizerParamGroup;

/// A network in training with FusedAdamW.
struct FusedTraining {
  FusedTraining(at::Device device, OptLevel level, uint64_t seed = 1)
      : net(make_net(device, seed)),
        batch(make_batch(device)),
        adamw(net->parameters(), 0.01),
        amped(initialize(net, adamw, quiet(level))) {}

  Optimizer& optimizer() { return amped.optimizer; }
  Tensor loss() { return loss_of(amped.model(batch.data), batch.target); }
  void backward() {
    optimizer().zero_grad();
    { scale_loss(loss(), optimizer()).backward(); }
  }
  void step() {
    backward();
    optimizer().step();
  }
  /// Of the model, its masters and the optimizer.
  std::vector<Tensor> all() {
    auto tensors = everything(adamw, net->parameters());
    for (const Tensor& master : clones(optimizer().master_params())) tensors.push_back(master);
    return tensors;
  }

  Net net;
  Batch batch;
  optim::FusedAdamW adamw;
  Amped<Net> amped;
};

class FusedLevelTest : public LevelTest {};

TEST_P(FusedLevelTest, Trains) {
  FusedTraining training(device(), level());
  const double first = training.loss().item<double>();
  for (int step = 0; step < 100; ++step) training.step();
  EXPECT_LT(training.loss().item<double>(), 0.5 * first);
}

TEST_P(FusedLevelTest, ResumesBitForBit) {
  FusedTraining whole(device(), level()), resumed(device(), level(), 2);
  for (int step = 0; step < 3; ++step) whole.step();
  std::stringstream file;
  torch::serialize::OutputArchive out;
  save(whole.amped, out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  load(resumed.amped, in);
  for (int step = 0; step < 3; ++step) {
    whole.step();
    resumed.step();
  }
  EXPECT_TRUE(same_bits(resumed.all(), whole.all()));
}

TORCHAMP_AT_LEVELS(FusedLevelTest, OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3,
                   OptLevel::O4, OptLevel::O5);

class FusedAmpTest : public DeviceTest {};

TEST_P(FusedAmpTest, StepsMastersAsItWouldFloat32Params) {
  FusedTraining training(device(), OptLevel::O2);
  const auto params = copies_of(training.optimizer().master_params());
  optim::FusedAdamW plain(params, 0.01);
  for (int step = 0; step < 3; ++step) {
    training.backward();
    const auto models = training.net->parameters();
    for (size_t i = 0; i < params.size(); ++i) params[i].mutable_grad() = models[i].grad().clone();
    training.optimizer().step();
    plain.step();
    auto got = everything(training.adamw, models);
    const auto masters = training.optimizer().master_params();
    std::copy(masters.begin(), masters.end(), got.begin());
    ASSERT_TRUE(same_bits(got, everything(plain, params)));
  }
}

TEST_P(FusedAmpTest, KeepsTheStatesFromBeforeInitialize) {
  Net net = make_net(device());
  const Batch batch = make_batch(device());
  optim::FusedAdamW adamw(net->parameters(), 0.01);
  loss_of(net(batch.data), batch.target).backward();
  adamw.step();
  auto amped = initialize(net, adamw, quiet(OptLevel::O2));
  const Tensor param = net->first->weight;
  ASSERT_NE(state_of(adamw, param), nullptr);
  const Tensor average = state_of(adamw, param)->get("exp_avg").clone();
  amped.optimizer.zero_grad();
  { scale_loss(loss_of(amped.model(batch.data), batch.target), amped.optimizer).backward(); }
  const Tensor grad = param.grad().clone();
  amped.optimizer.step();
  const auto* state = state_of(adamw, param);
  EXPECT_EQ(state->get("step").item<int64_t>(), 2);
  EXPECT_LE(distance({state->get("exp_avg")}, {average.mul(0.9).add(grad, 0.1)}), 1e-6);
}

TEST_P(FusedAmpTest, AddsAGroupWithOptionsOfItsOwn) {
  Net net = make_net(device());
  optim::FusedAdamW adamw(net->first->parameters(), 0.01);
  auto amped = initialize(net, adamw, quiet(OptLevel::O2));
  amped.optimizer.add_param_group(OptimizerParamGroup(
      net->last->parameters(), std::make_unique<optim::FusedAdamWOptions>(0.5)));
  EXPECT_EQ(amped.optimizer.param_groups()[1].options().get_lr(), 0.5);
  EXPECT_EQ(dtypes_of(amped.optimizer.master_params()), "Float Float Float Float");
}

TORCHAMP_ON_EACH_DEVICE(FusedAmpTest);

}  // namespace
}  // namespace torchamp
