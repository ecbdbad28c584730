// Fused optimizers under initialize.
#include <torchamp/optim/adam.h>

#include "fused_cases.h"
#include "net.h"

namespace torchamp {
namespace {

using at::Tensor;
using torch::optim::OptimizerParamGroup;

class FusedAmpTest : public DeviceTest {};

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
