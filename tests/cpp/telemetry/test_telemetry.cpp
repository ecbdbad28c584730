#include <torchamp/optim/adam.h>
#include <torchamp/telemetry.h>

#include "device.h"
#include "training.h"

namespace torchamp {
namespace {

class TelemetryTest : public DeviceTest {};

/// Reading the scale waits for all queued work.
Telemetry arrived(const Optimizer& optimizer) {
  optimizer.amp()->loss_scaler().loss_scale();
  return telemetry(optimizer);
}

template <class OptimizerOf>
void expect_steps_and_scales(const Net& net, OptimizerOf& own, const Batch& batch) {
  auto amped = initialize(net, own, Options("O2").verbosity(0));
  Optimizer& optimizer = amped.optimizer;
  EXPECT_EQ(telemetry(optimizer).steps, 0);
  EXPECT_FALSE(telemetry(optimizer).stepped.has_value());
  for (const bool overflows : {false, true, false}) {
    optimizer.zero_grad();
    {
      scale_loss scaled_loss(loss_of(amped.model(batch.data), batch.target), optimizer);
      scaled_loss.backward();
      if (overflows) net->last->bias.grad().fill_(INFINITY);
    }
    optimizer.step();
    const Telemetry known = arrived(optimizer);
    EXPECT_EQ(known.stepped, !overflows);
    EXPECT_EQ(known.loss_scales,
              std::vector<double>{amped.model.amp()->loss_scaler().loss_scale()});
  }
  EXPECT_EQ(arrived(optimizer).steps, 3);
  EXPECT_EQ(arrived(optimizer).skipped_steps, 1);
}

TEST_P(TelemetryTest, CountsStepsOfLibTorchsOptimizers) {
  const Net net = make_net(device(), 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  expect_steps_and_scales(net, sgd, make_batch(device()));
}

TEST_P(TelemetryTest, CountsStepsOfFusedOptimizers) {
  const Net net = make_net(device(), 1);
  optim::FusedAdam adam(net->parameters(), optim::FusedAdamOptions(1e-3));
  expect_steps_and_scales(net, adam, make_batch(device()));
}

TEST_P(TelemetryTest, CountsWhatCameBeforeTheFirstCall) {
  Training training(device(), Options("O2").verbosity(0));
  for (int step = 0; step < 3; ++step) training.step();
  EXPECT_EQ(arrived(training.optimizer()).steps, 3);
}

TORCHAMP_ON_EACH_DEVICE(TelemetryTest);

}  // namespace
}  // namespace torchamp
