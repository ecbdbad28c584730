#include <torch/csrc/autograd/function_hook.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/sgd.h>
#include <torchamp/cast.h>
#include <torchamp/initialize.h>

#include "device.h"
#include "errors.h"
#include "tensors.h"

namespace torchamp {
namespace {

using at::Tensor;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNorm3d;
using torch::nn::BatchNormOptions;
using torch::nn::Linear;
using torch::nn::ModuleList;

class CastTest : public DeviceTest {
 protected:
  template <class Holder>
  static Holder here(Holder module) {
    module->to(device());
    return module;
  }
};

TEST_P(CastTest, GivesParametersBuffersAndGradsTheDtype) {
  auto norm = here(BatchNorm1d(3));
  const Tensor weight = norm->weight;
  weight.mutable_grad() = tensor_of({1, 2, 3}, at::kFloat, device());
  cast_module(*norm, at::kHalf, /*keep_batchnorm_fp32=*/false);
  EXPECT_TRUE(norm->weight.is_same(weight));
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_TRUE(weight.is_leaf());
  EXPECT_EQ(weight.scalar_type(), at::kHalf);
  EXPECT_TRUE(same_bits(weight.grad(), tensor_of({1, 2, 3}, at::kHalf, device())));
  EXPECT_EQ(norm->running_mean.scalar_type(), at::kHalf);
  EXPECT_EQ(norm->num_batches_tracked.scalar_type(), at::kLong);
}

/// What a hook of the node that accumulates a grad counts.
struct CountCalls : torch::autograd::FunctionPostHook {
  explicit CountCalls(int& calls) : calls(calls) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    ++calls;
    return outputs;
  }
  int& calls;
};

TEST_P(CastTest, HooksOfNodesThatAccumulateGradsStay) {
  auto linear = here(Linear(2, 2));
  int calls = 0;
  const auto node = torch::autograd::impl::grad_accumulator(linear->weight);
  node->add_post_hook(std::make_unique<CountCalls>(calls));
  for (const auto dtype : {at::kHalf, at::kFloat}) {
    cast_module(*linear, dtype, false);
    linear->weight.mutable_grad().reset();
    (linear->weight.to(at::kFloat) * 2.0F).sum().backward();
    EXPECT_EQ(linear->weight.grad().scalar_type(), dtype);
  }
  EXPECT_EQ(calls, 2);
}

TEST_P(CastTest, RoundsToNearest) {
  auto linear = here(Linear(2, 2));
  const Tensor before = linear->weight.detach().clone();
  cast_module(*linear, at::kBFloat16, false);
  EXPECT_TRUE(same_bits(linear->weight, before.to(at::kBFloat16)));
}

TEST_P(CastTest, BatchNormsAreKeptWhereverTheyAre) {
  ModuleList inner(Linear(2, 2), BatchNorm2d(2));
  ModuleList outer(inner, BatchNorm1d(2), BatchNorm3d(2), BatchNorm1d(BatchNormOptions(2)));
  here(outer);
  cast_module(*outer, at::kHalf, /*keep_batchnorm_fp32=*/true);
  for (const auto& param : outer->named_parameters()) {
    const bool is_linear = param.key().rfind("0.0.", 0) == 0;
    EXPECT_EQ(param->scalar_type(), is_linear ? at::kHalf : at::kFloat) << param.key();
  }
  EXPECT_EQ(outer->named_buffers()["1.running_var"].scalar_type(), at::kFloat);
}

template <class Norm>
void train_without_weights(Norm norm, const Tensor& input) {
  cast_module(*norm, at::kHalf, /*keep_batchnorm_fp32=*/true);
  EXPECT_EQ(norm->running_mean.scalar_type(), at::kFloat);
  const Tensor x = input.to(at::kHalf).set_requires_grad(true);
  const Tensor output = norm->forward(x);
  output.sum().backward();
  EXPECT_EQ(output.scalar_type(), at::kHalf);
  EXPECT_EQ(x.grad().scalar_type(), at::kHalf);
  EXPECT_TRUE(norm->running_mean.ne(0).all().template item<bool>());
  norm->eval();
  EXPECT_EQ(norm->forward(x).scalar_type(), at::kHalf);
}

TEST_P(CastTest, BatchNormsWithoutWeightsAreKeptAndTakeLowPrecision) {
  const auto options = BatchNormOptions(2).affine(false);
  Random random(61);
  train_without_weights(here(BatchNorm1d(options)), random.normal({5, 2}, at::kFloat, device()));
  train_without_weights(here(BatchNorm2d(options)),
                        random.normal({5, 2, 3, 3}, at::kFloat, device()));
  train_without_weights(here(BatchNorm3d(options)),
                        random.normal({5, 2, 3, 3, 3}, at::kFloat, device()));
}

struct SubclassedNormImpl : torch::nn::BatchNorm2dImpl {
  using BatchNorm2dImpl::BatchNorm2dImpl;
};

TEST_P(CastTest, ASubclassOfABatchNormIsKept) {
  auto norm = std::make_shared<SubclassedNormImpl>(BatchNormOptions(2));
  norm->to(device());
  cast_module(*norm, at::kHalf, /*keep_batchnorm_fp32=*/true);
  EXPECT_EQ(norm->weight.scalar_type(), at::kFloat);
}

TEST_P(CastTest, AFrozenParameterStaysFrozen) {
  auto linear = here(Linear(2, 2));
  linear->weight.set_requires_grad(false);
  cast_module(*linear, at::kHalf, false);
  EXPECT_EQ(linear->weight.scalar_type(), at::kHalf);
  EXPECT_FALSE(linear->weight.requires_grad());
}

TEST_P(CastTest, RecurrentModulesRunAfterwards) {
  auto lstm = here(torch::nn::LSTM(3, 4));
  auto gru = here(torch::nn::GRU(3, 4));
  auto rnn = here(torch::nn::RNN(3, 4));
  const Tensor input = Random(60).normal({5, 2, 3}, at::kHalf, device());
  cast_module(*lstm, at::kHalf, false);
  cast_module(*gru, at::kHalf, false);
  cast_module(*rnn, at::kHalf, false);
  EXPECT_EQ(std::get<0>(lstm->forward(input)).scalar_type(), at::kHalf);
  EXPECT_EQ(std::get<0>(gru->forward(input)).scalar_type(), at::kHalf);
  EXPECT_EQ(std::get<0>(rnn->forward(input)).scalar_type(), at::kHalf);
}

TEST_P(CastTest, ListsWhatItWouldCastOnce) {
  Linear shared(2, 2);
  ModuleList twice(shared, BatchNorm1d(2), shared);
  here(twice);
  const auto params = params_to_cast(*twice, at::kHalf, /*keep_batchnorm_fp32=*/true);
  ASSERT_EQ(params.size(), 2U);
  EXPECT_TRUE(params[0].is_same(shared->weight));
  EXPECT_TRUE(params[1].is_same(shared->bias));
  EXPECT_EQ(params_to_cast(*twice, at::kHalf, false).size(), 4U);
  EXPECT_TRUE(params_to_cast(*twice, at::kFloat, false).empty());
}

/// Whose names begin alike.
struct Bodies : torch::nn::Module {
  ModuleList first = register_module("body", ModuleList(Linear(2, 2), Linear(2, 2)));
  Linear second = register_module("body_2", Linear(2, 2));
};

TEST_P(CastTest, KeepsModulesByName) {
  const auto net = here(std::make_shared<Bodies>());
  cast_module(*net, at::kHalf, /*keep_batchnorm_fp32=*/false, {"body"});
  for (const auto& param : net->first->parameters()) EXPECT_EQ(param.scalar_type(), at::kFloat);
  EXPECT_EQ(net->second->weight.scalar_type(), at::kHalf);
  EXPECT_EQ(params_to_cast(*net, at::kBFloat16, false, {"body.1", "body_2"}).size(), 2U);
}

/// Of tables that it makes, and of one that those in it have.
struct Rotary : torch::nn::Module {
  explicit Rotary(int count) {
    register_buffer("cos", at::ones({2}));
    register_module("inner", inner);
    inner->register_buffer("steps", at::zeros({}, at::kLong));
    for (int i = 0; i < count; ++i) inner->register_buffer("sin_" + c10::str(i), at::ones({2}));
  }
  std::shared_ptr<Module> inner = std::make_shared<Module>();
};

TEST_P(CastTest, KeepsBuffersByName) {
  const auto net = here(std::make_shared<Rotary>(2));
  ASSERT_EQ(buffers_to_cast(*net, at::kHalf, false).size(), 3U);
  EXPECT_EQ(buffers_to_cast(*net, at::kHalf, false).front().first, "cos");
  cast_module(*net, at::kHalf, /*keep_batchnorm_fp32=*/false, {"cos", "inner.sin_1"});
  const auto buffers = net->named_buffers();
  EXPECT_EQ(buffers["cos"].scalar_type(), at::kFloat);
  EXPECT_EQ(buffers["inner.sin_0"].scalar_type(), at::kHalf);
  EXPECT_EQ(buffers["inner.sin_1"].scalar_type(), at::kFloat);
  EXPECT_EQ(buffers["inner.steps"].scalar_type(), at::kLong);
}

/// What initialize logs.
std::string said(int buffers, const Options& options) {
  const Logged logged;
  (void)initialize(std::make_tuple(std::make_shared<Rotary>(buffers), std::make_shared<Rotary>(0)),
                   OptimizerRefs(), options);
  return logged.text();
}

TEST(CastBuffers, SaysWhichBuffersItCasts) {
  const std::string remedy = "; keep_fp32 takes the names of those that must stay in float32\n";
  EXPECT_EQ(said(1, "O2"),
            "initialize: buffers cast to float16: \"cos\", \"inner.sin_0\"" + remedy);
  EXPECT_EQ(said(5, "O5"),
            "initialize: buffers cast to bfloat16: \"cos\", \"inner.sin_0\", \"inner.sin_1\", "
            "\"inner.sin_2\" and 2 others" +
                remedy);
  EXPECT_EQ(said(1, Options("O3").keep_fp32({"cos", "inner"})), "");
  EXPECT_EQ(said(1, Options("O2").keep_fp32({"cos", "inner.sin_0"})), "");
  EXPECT_EQ(said(1, Options("O2").verbosity(0)), "");
  for (const char* level : {"O0", "O1", "O4"}) EXPECT_EQ(said(1, level), "");
}

TEST_P(CastTest, InitializeKeepsModulesByName) {
  torch::nn::Sequential net(Linear(2, 2), Linear(2, 2));
  here(net);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto options = [](const char* level, const std::string& name) {
    return Options(level).keep_fp32({name}).verbosity(0);
  };
  const auto error_of = [&](const Options& wrong) {
    return message_of([&] { (void)initialize(net, sgd, wrong); });
  };
  EXPECT_EQ(error_of(options("O2", "head")),
            "initialize: expected keep_fp32 to name modules or buffers in the model, got \"head\"");
  {
    auto amped = initialize(net, sgd, options("O1", "1"));
    EXPECT_EQ(net[1]->as<Linear>()->weight.scalar_type(), at::kFloat);
    release(amped);
  }
  auto amped = initialize(net, sgd, options("O2", "1"));
  EXPECT_EQ(net[0]->as<Linear>()->weight.scalar_type(), at::kHalf);
  EXPECT_EQ(net[1]->as<Linear>()->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(amped.optimizer.master_params().size(), 4U);
}

TORCHAMP_ON_EACH_DEVICE(CastTest);

TEST(CastFloating, CastsFloatingTensorsAndNothingElse) {
  const Tensor floats = tensor_of({1.5}), longs = tensor_of({1}, at::kLong);
  EXPECT_EQ(cast_floating(floats, at::kHalf).scalar_type(), at::kHalf);
  EXPECT_TRUE(cast_floating(floats, at::kFloat).is_same(floats));
  EXPECT_TRUE(cast_floating(longs, at::kHalf).is_same(longs));
  EXPECT_FALSE(cast_floating(Tensor(), at::kHalf).defined());
  EXPECT_EQ(cast_floating(std::string("text"), at::kHalf), "text");
  EXPECT_EQ(cast_floating(7, at::kHalf), 7);
}

}  // namespace
}  // namespace torchamp
