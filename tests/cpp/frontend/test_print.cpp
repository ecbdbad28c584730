#include <torch/nn/modules/container/sequential.h>
#include <torchamp/optim/adam.h>

#include <sstream>

#include "device.h"
#include "training.h"

namespace torchamp {
namespace {

class PrintTest : public DeviceTest {};

template <class T>
std::string text_of(const T& object) {
  std::ostringstream stream;
  stream << object;
  return stream.str();
}

TEST(Print, Properties) {
  EXPECT_EQ(text_of(Options("O0").resolve()), "O0 (weights: float32, loss scale: 1)");
  EXPECT_EQ(text_of(Options("O1").resolve()),
            "O1 (ops: float16 where that is safe, loss scale: dynamic)");
  EXPECT_EQ(text_of(Options("O2").resolve()),
            "O2 (weights: float16, batch norms: float32, masters: float32, loss scale: dynamic)");
  EXPECT_EQ(text_of(Options("O3").loss_scale(128.0).resolve()),
            "O3 (weights: float16, loss scale: 128)");
  EXPECT_EQ(text_of(Options("O5").keep_batchnorm_fp32(false).resolve()),
            "O5 (weights: bfloat16, masters: float32, loss scale: 1)");
}

TEST_P(PrintTest, LossScalers) {
  LossScaler scaler({}, device());
  scaler.set_loss_scale(1024);
  const std::string place = ", device=" + scaler.device().str() + ")";
  EXPECT_EQ(text_of(scaler),
            "LossScaler(loss_scale=1024, dynamic, growth_factor=2, backoff_factor=0.5, "
            "growth_interval=2000, min_scale=0.000976562, max_scale=1.67772e+07" +
                place);
  EXPECT_EQ(text_of(LossScaler({LossScale(128.0), 65536.0, {}}, device())),
            "LossScaler(loss_scale=128, fixed" + place);
}

TEST_P(PrintTest, WhatInitializeReturns) {
  Training training(device(), Options("O2").verbosity(0));
  const std::string amp = text_of(*training.optimizer().amp());
  EXPECT_EQ(amp.find("Amp(O2 (weights: float16, batch norms: float32, masters: float32, loss "
                     "scale: dynamic), models: "),
            0U)
      << amp;
  EXPECT_NE(amp.find("loss scales: 65536)"), std::string::npos) << amp;
}

TEST_P(PrintTest, Models) {
  auto net = torch::nn::Sequential(torch::nn::Linear(2, 3));
  net->to(device());
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto amped = initialize(net, sgd, Options("O5").verbosity(0));
  const std::string text = text_of(amped.model);
  EXPECT_NE(text.find("Linear(in_features=2, out_features=3"), std::string::npos) << text;
  EXPECT_NE(text.find("\nAmp(O5 (weights: bfloat16"), std::string::npos) << text;
}

TORCHAMP_ON_EACH_DEVICE(PrintTest);

}  // namespace
}  // namespace torchamp
