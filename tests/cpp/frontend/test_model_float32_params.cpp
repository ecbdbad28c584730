// Float32Params: float32 weights outside of steps, and training goes on as without it.
#include <torchamp/float32_params.h>

#include <optional>
#include <stdexcept>

#include "checkpoints.h"
#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

class Float32ParamsTest : public LevelTest {
 protected:
  static Options options() {
    return quiet(level()).loss_scale(level() == OptLevel::O5 ? 1 : 1024.0);
  }
  static std::vector<Tensor> values_of(const Training& training) {
    std::vector<Tensor> values;
    for (const Tensor& tensor : training.net->parameters()) {
      values.push_back(training.amped.model.amp()->value(tensor).clone());
    }
    return values;
  }
  static void multiply(const Training& training, double factor) {
    const at::NoGradGuard no_grad;
    for (Tensor& param : training.net->parameters()) param.data().mul_(factor);
  }
};

TEST_P(Float32ParamsTest, TheModelIsTheFloat32One) {
  Training training(device(), options());
  Net plain = make_net(device());
  const auto params = training.net->parameters();
  const std::string dtypes = dtypes_of(params);
  if (level() == OptLevel::O3) {  // has no masters
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < params.size(); ++i) plain->parameters()[i].copy_(params[i]);
  }
  {
    const Float32Params wide(training.amped);
    EXPECT_TRUE(same_bits(training.net->parameters(), plain->parameters()));
    EXPECT_TRUE(training.net->parameters()[0].is_same(params[0]));
    const Tensor x = training.batch.data;
    EXPECT_TRUE(same_bits(training.amped.model(x), plain->forward(x)));
  }
  EXPECT_EQ(dtypes_of(params), dtypes);
}

TEST_P(Float32ParamsTest, WhatIsWrittenReachesTheMastersAlsoByAnException) {
  Training training(device(), options());
  const auto before = values_of(training);
  const double small = 1 + 0x1p-14;  // less than 16 bits hold
  try {
    const Float32Params wide(training.amped.model);
    const Float32Params nested(training.amped);
    multiply(training, small);
    throw std::runtime_error("mine");
  } catch (const std::runtime_error&) {
  }
  const auto after = values_of(training);
  for (size_t i = 0; i < before.size(); ++i) {
    const Tensor expected = level() == OptLevel::O3 ? before[i] : before[i] * small;
    EXPECT_TRUE(same_bits(after[i], expected));
  }
}

TEST_P(Float32ParamsTest, AStepWithinItIsTheStep) {
  Training training(device(), options()), other(device(), options());
  for (int i = 0; i < 3; ++i) {
    for (Training* each : {&training, &other}) {
      each->optimizer().zero_grad();
      scale_loss(each->loss(), each->optimizer()).backward();
    }
    {
      const Float32Params wide(training.amped);
      training.optimizer().step();
      EXPECT_EQ(training.net->parameters()[0].scalar_type(), at::kFloat);
    }
    other.optimizer().step();
    EXPECT_TRUE(same_bits(values_of(training), values_of(other)));
  }
}

TEST_P(Float32ParamsTest, ItLeavesGradsAndBackwardsAlone) {
  Training training(device(), options()), other(device(), options());
  for (Training* each : {&training, &other}) {
    std::optional<Float32Params> wide;
    {
      scale_loss scaled_loss(each->loss(), each->optimizer());
      if (each == &training) wide.emplace(each->amped);
      wide.reset();
      scaled_loss.backward();
      if (each == &training) wide.emplace(each->amped);
    }
    for (Tensor& param : each->net->parameters()) param.mutable_grad().mul_(0.5);
    wide.reset();
    each->optimizer().step();
  }
  EXPECT_TRUE(same_bits(values_of(training), values_of(other)));
}

TEST_P(Float32ParamsTest, ReleaseWithinItIsRefused) {
  Training training(device(), options());
  std::optional<Float32Params> wide(training.amped);
  EXPECT_EQ(message_of([&] { release(training.amped); }),
            "release: expected no Float32Params to be open, but one is; release after it");
  wide.reset();
  release(training.amped);
  wide.emplace(training.amped);
}

TORCHAMP_AT_LEVELS(Float32ParamsTest, OptLevel::O0, OptLevel::O2, OptLevel::O3, OptLevel::O5);

}  // namespace
}  // namespace torchamp
