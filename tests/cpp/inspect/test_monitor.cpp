#include <torch/optim/sgd.h>
#include <torchamp/clip.h>
#include <torchamp/initialize.h>
#include <torchamp/monitor.h>
#include <torchamp/optim/adam.h>
#include <torchamp/scale_loss.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "device.h"
#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

class MonitorTest : public DeviceTest {
 protected:
  /// Told values, and what they are added to.
  std::vector<StepValues> told;
  Monitor::Write write = [this](const StepValues& values) { told.push_back(values); };
};

TEST_P(MonitorTest, TellsTheNormOfUnscaledGrads) {
  for (const char* level : {"O0", "O1", "O2", "O5"}) {
    Training training(device(), Options(level).verbosity(0));
    told.clear();
    Monitor monitor(training.optimizer(), write);
    std::vector<double> expected;
    for (int i = 0; i < 3; ++i) {
      training.optimizer().zero_grad();
      scale_loss(training.loss(), training.optimizer()).backward();
      const at::Tensor norm = clip_grad_norm_(training.optimizer(), 1e9);
      expected.push_back(norm.item().toDouble());
      training.optimizer().step();
    }
    monitor.close();
    ASSERT_EQ(told.size(), 3U) << level;
    for (size_t i = 0; i < told.size(); ++i) {
      EXPECT_EQ(told[i].step, static_cast<int64_t>(i));
      EXPECT_NEAR(told[i].grad_norm, expected[i], 1e-3 * expected[i]) << level;
    }
    EXPECT_EQ(told.back().loss_scale, level[1] == '1' || level[1] == '2' ? 65536 : 1);
  }
}

TEST_P(MonitorTest, DeferredGradsStayDeferred) {
  const Net net = make_net(device(), 1);
  const Batch batch = make_batch(device());
  optim::FusedAdam adam(net->parameters(), optim::FusedAdamOptions(1e-3));
  auto [model, optimizer] =
      initialize(net, adam, Options("O2").materialize_master_grads(false).verbosity(0));
  Monitor monitor(optimizer, write);
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    scale_loss(loss_of(model(batch.data), batch.target), optimizer).backward();
    optimizer.step();
  }
  monitor.close();
  ASSERT_EQ(told.size(), 2U);
  EXPECT_GT(told[0].grad_norm, 0);
  EXPECT_LT(told[0].grad_norm, 1e3);  // not times the loss scale
}

TEST_P(MonitorTest, SharesOfZerosAndOfSubnormalNumbers) {
  at::Tensor weight = at::ones({8}, device()).requires_grad_();
  struct Module : torch::nn::Module {
    explicit Module(const at::Tensor& weight) { register_parameter("weight", weight); }
  };
  const auto module = std::make_shared<Module>(weight);
  torch::optim::SGD sgd(module->parameters(), 0.1);
  auto amped = initialize(module, sgd, Options("O1").loss_scale(4.0).verbosity(0));
  Monitor monitor(amped.optimizer, write);
  at::Tensor factor = at::ones({8}, device());
  factor.slice(0, 0, 2).zero_();
  factor.slice(0, 2, 5).fill_(std::ldexp(1.0, -17));  // times 4 below 2**-14
  scale_loss((weight * factor).sum(), amped.optimizer).backward();
  amped.optimizer.step();
  monitor.close();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].zero_grads, 0.25);
  EXPECT_EQ(told[0].subnormal_grads, 0.375);
  EXPECT_EQ(told[0].loss_scale, 4);
}

TEST_P(MonitorTest, CountsSkippedStepsAndObservesEveryNth) {
  Training training(device(), Options("O2").verbosity(0));
  Monitor monitor(training.optimizer(), write, 2);
  for (int i = 0; i < 5; ++i) {
    if (i != 1) {
      training.step();
      continue;
    }
    training.optimizer().zero_grad();
    training.overflow();
    training.optimizer().step();
  }
  monitor.close();
  training.step();
  ASSERT_EQ(told.size(), 3U);
  EXPECT_EQ(told[1].step, 2);
  EXPECT_EQ(told[2].skipped_steps, 1);
}

TEST_P(MonitorTest, WithoutGrads) {
  Training training(device(), Options("O2").verbosity(0));
  Monitor monitor(training.optimizer(), write);
  training.optimizer().step();
  monitor.close();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_TRUE(std::isnan(told[0].grad_norm));
}

TEST_P(MonitorTest, WritesCsv) {
  const std::string path = ::testing::TempDir() + "/steps_of_monitor.csv";
  Training training(device(), Options("O2").verbosity(0));
  {
    const Monitor monitor(training.optimizer(), path);
    training.step();
  }
  std::ifstream file(path);
  std::string header, row;
  std::getline(file, header);
  std::getline(file, row);
  EXPECT_EQ(header, "step,loss_scale,grad_norm,zero_grads,subnormal_grads,steps,skipped_steps");
  EXPECT_EQ(row.rfind("0,65536,", 0), 0U) << row;
  std::remove(path.c_str());
  EXPECT_NE(message_of([&] {
              Monitor(training.optimizer(), "/nowhere/steps.csv");
            }).find("Monitor: expected a path of a file to write, got /nowhere/steps.csv"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              Monitor(training.optimizer(), write, 0);
            }).find("Monitor: expected every to be at least 1, got 0"),
            std::string::npos);
}

TEST_P(MonitorTest, IsFreedWithItsModel) {
  std::weak_ptr<Amp> amp;
  {
    Training training(device(), Options("O2").verbosity(0));
    amp = training.optimizer().amp();
    const Monitor monitor(training.optimizer(), write);
    training.step();
  }
  EXPECT_TRUE(amp.expired());
}

TORCHAMP_ON_EACH_DEVICE(MonitorTest);

}  // namespace
}  // namespace torchamp
