#include <torch/nn/modules/container/sequential.h>
#include <torchamp/inference.h>

#include "errors.h"
#include "net.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

class InferenceTest : public DeviceTest {
 protected:
  InferenceTest() { net_->eval(); }

  Net net_ = make_net(device());
  const Tensor data_ = make_batch(device()).data;
};

TEST_P(InferenceTest, CastsTheModelOnceAndWhatGoesInAndComesOut) {
  const Tensor expected = net_->forward(data_);
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    Net net = make_net(device());
    net->eval();
    auto model = cast_for_inference(net, dtype);
    const std::string low = toString(dtype);
    EXPECT_EQ(dtypes_of(net->parameters()),
              low + ' ' + low + ' ' + low + ' ' + low + " Float Float");
    const Tensor output = model(data_);
    EXPECT_EQ(output.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(output, expected, 0.05, 0.05)) << low;
  }
}

TEST_P(InferenceTest, CastsBatchNormsAndLeavesOutputsWhereAsked) {
  auto model = cast_for_inference(net_, at::kBFloat16, /*keep_batchnorm_fp32=*/false, std::nullopt);
  EXPECT_EQ(net_->norm->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(net_->norm->running_var.scalar_type(), at::kBFloat16);
  EXPECT_EQ(model(data_).scalar_type(), at::kBFloat16);
}

TEST_P(InferenceTest, TakesAModuleByReference) {
  auto model = cast_for_inference(*net_, at::kHalf);
  EXPECT_EQ(&*model, net_.get());
  EXPECT_EQ(model(data_).scalar_type(), at::kFloat);
}

TEST_P(InferenceTest, ParametersKeepTheirIdentityAndMayBeFrozen) {
  const auto before = net_->parameters();
  before[0].set_requires_grad(false);
  cast_for_inference(net_, at::kHalf);
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].is_same(net_->parameters()[i]));
  EXPECT_FALSE(before[0].requires_grad());
  EXPECT_FALSE(net_->is_training());
}

TEST_P(InferenceTest, RunsWithoutGradsAndInInferenceMode) {
  auto model = cast_for_inference(net_, at::kBFloat16);
  const Tensor expected = model(data_);
  EXPECT_TRUE(expected.requires_grad());
  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(same_bits(model(data_), expected));
  }
  const c10::InferenceMode inference;
  EXPECT_TRUE(same_bits(model(data_), expected));
  EXPECT_TRUE(model(data_).is_inference());
}

/// Code outside of the mode can still train or copy the model.
TEST_P(InferenceTest, CastInInferenceModeItIsAModelLikeAnyOther) {
  {
    const c10::InferenceMode inference;
    cast_for_inference(net_, at::kBFloat16);
  }
  for (const Tensor& param : net_->parameters()) EXPECT_FALSE(param.is_inference());
  const Tensor output = net_->forward(data_.to(at::kBFloat16));
  output.sum().backward();
  EXPECT_TRUE(net_->last->weight.grad().defined());
}

TEST_P(InferenceTest, MayBeCastAgain) {
  cast_for_inference(net_, at::kBFloat16);
  auto model = cast_for_inference(net_, at::kHalf);
  EXPECT_EQ(net_->last->weight.scalar_type(), at::kHalf);
  EXPECT_EQ(model(data_).scalar_type(), at::kFloat);
  auto restored = cast_for_inference(net_, at::kFloat);
  EXPECT_EQ(net_->last->weight.scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(restored(data_), net_->forward(data_)));
}

TEST_P(InferenceTest, TakesAModelThatWasTrainedAtO1) {
  Training training(device(), quiet(OptLevel::O1));
  training.step();
  training.net->eval();
  const Tensor in_float32 = [&] {
    const disable_casts off;
    return training.net->forward(data_);
  }();
  auto model = cast_for_inference(training.net, at::kHalf);
  const Tensor output = model(data_);
  EXPECT_EQ(output.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(output, in_float32, 0.01, 0.01));
}

TEST_P(InferenceTest, TakesSequentials) {
  torch::nn::Sequential stack(torch::nn::Linear(4, 4), torch::nn::Linear(4, 2));
  stack->to(device());
  EXPECT_EQ(cast_for_inference(stack, at::kHalf)(data_).scalar_type(), at::kFloat);
}

TEST_P(InferenceTest, RefusesATypeThatIsNotFloating) {
  EXPECT_EQ(message_of<c10::TypeError>([&] { cast_for_inference(net_, at::kInt); }),
            "cast_for_inference: expected dtype to be floating, got Int");
  EXPECT_EQ(net_->last->weight.scalar_type(), at::kFloat);
}

TORCHAMP_ON_EACH_DEVICE(InferenceTest);

}  // namespace
}  // namespace torchamp
