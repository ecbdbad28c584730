#include <ATen/ops/mm.h>

#include <thread>

#include "core/param.h"
#include "errors.h"
#include "net.h"
#include "tensors.h"

namespace torchamp {
namespace {

using at::Tensor;

struct Expected {
  const char* model_dtypes;  ///< first.weight, .bias, last.weight, .bias, norm.weight, .bias
  const char* stepped_dtypes;
  bool scales;
};

const Expected kExpected[] = {
    {"Float Float Float Float Float Float", "Float Float Float Float Float Float", false},
    {"Float Float Float Float Float Float", "Float Float Float Float Float Float", true},
    {"Half Half Half Half Float Float", "Float Float Float Float Float Float", true},
    {"Half Half Half Half Half Half", "Half Half Half Half Half Half", false},
    {"Float Float Float Float Float Float", "Float Float Float Float Float Float", false},
    {"BFloat16 BFloat16 BFloat16 BFloat16 Float Float", "Float Float Float Float Float Float",
     false},
};

class InitializeTest : public LevelTest {
 protected:
  static const Expected& expected() { return kExpected[static_cast<int>(level())]; }

  Net net_ = make_net(device());
  torch::optim::SGD sgd_{net_->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9)};
  Batch batch_ = make_batch(device());
};

TEST_P(InitializeTest, GivesTheModelAndTheOptimizerTheirDtypes) {
  const auto before = net_->parameters();
  auto amped = initialize(net_, sgd_, quiet(level()));
  EXPECT_EQ(dtypes_of(net_->parameters()), expected().model_dtypes);
  EXPECT_EQ(dtypes_of(amped.optimizer.master_params()), expected().stepped_dtypes);
  EXPECT_EQ(amped.model.amp()->loss_scaler().is_identity(), !expected().scales);
  const auto after = net_->parameters();
  for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(before[i].is_same(after[i])) << i;
}

TEST_P(InitializeTest, OutputsAreFloat32UnlessAskedFor) {
  auto model = initialize(net_, quiet(level()));
  EXPECT_EQ(model(batch_.data).scalar_type(), at::kFloat);
  auto other = initialize(make_net(device()), quiet(level()).cast_model_outputs(at::kBFloat16));
  EXPECT_EQ(other(batch_.data).scalar_type(), at::kBFloat16);
}

TEST_P(InitializeTest, KeepsTheMomentumThatIsThereAlready) {
  loss_of(net_->forward(batch_.data), batch_.target).backward();
  sgd_.step();
  const Tensor weight = net_->first->weight;
  auto& state =
      static_cast<torch::optim::SGDParamState&>(*sgd_.state().at(weight.unsafeGetTensorImpl()));
  const Tensor momentum = state.momentum_buffer();
  auto amped = initialize(net_, sgd_, quiet(level()));
  EXPECT_TRUE(sgd_.param_groups()[0].params()[0].is_same(weight));
  const auto found = sgd_.state().find(weight.unsafeGetTensorImpl());
  ASSERT_NE(found, sgd_.state().end());
  EXPECT_TRUE(static_cast<torch::optim::SGDParamState&>(*found->second)
                  .momentum_buffer()
                  .is_same(momentum));
  EXPECT_EQ(sgd_.state().size(), 6U);
}

TEST_P(InitializeTest, DisabledChangesNothing) {
  const auto before = clones(net_->parameters());
  auto amped = initialize(net_, sgd_, quiet(level()).enabled(false));
  EXPECT_TRUE(same_bits(net_->parameters(), before));
  const Tensor loss = loss_of(amped.model(batch_.data), batch_.target);
  {
    scale_loss scaled_loss(loss, amped.optimizer);
    EXPECT_TRUE(scaled_loss.tensor().is_same(loss));
    scaled_loss.backward();
  }
  EXPECT_TRUE(amped.optimizer.step());
  EXPECT_FALSE(same_bits(net_->parameters(), before));
}

TEST_P(InitializeTest, RefusesAModelThatIsNotFloat32BeforeItTouchesAny) {
  Net half = make_net(device());
  half->last->weight.set_data(half->last->weight.to(at::kHalf));
  const auto call = [&] {
    (void)initialize(std::make_tuple(net_, half), OptimizerRefs{sgd_}, quiet(level()));
  };
  EXPECT_EQ(
      message_of(call),
      "initialize: expected a float32 model, got parameter \"last.weight\" in Half. "
      "initialize casts the model itself: remove the call of to(torch::kHalf), or freeze what "
      "does not train by set_requires_grad(false). A clone of a model in training becomes "
      "float32 by to(torch::kFloat)");
  EXPECT_EQ(dtypes_of(net_->parameters()), kExpected[0].model_dtypes);
  EXPECT_TRUE(sgd_.param_groups()[0].params()[0].is_same(net_->first->weight));
}

/// O1's autocast ends when the result of initialize is destroyed.
TEST_P(InitializeTest, LeavesNoAutocastBehind) {
  const auto mm_type = [&] { return at::mm(batch_.data, batch_.data.t()).scalar_type(); };
  {
    auto amped = initialize(net_, sgd_, quiet(level()));
    const auto autocast_type = default_properties(level()).autocast_type;
    EXPECT_EQ(mm_type(), autocast_type.value_or(at::kFloat));
  }
  EXPECT_EQ(mm_type(), at::kFloat);
}

/// Forwards in other threads behave as in the thread of initialize.
TEST_P(InitializeTest, ForwardsInOtherThreadsCastAlike) {
  auto amped = initialize(net_, sgd_, quiet(level()));
  const at::Tensor expected = amped.model(batch_.data);
  at::Tensor in_thread;
  std::thread([&] { in_thread = amped.model(batch_.data); }).join();
  EXPECT_TRUE(same_bits(in_thread, expected));
}

TORCHAMP_AT_LEVELS(InitializeTest, OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3,
                   OptLevel::O4, OptLevel::O5);

class InitializeManyTest : public DeviceTest {};

template <class Amped>
void train_once(Amped& amped, const Batch& batch) {
  amped.optimizer.zero_grad();
  scale_loss(loss_of(amped.model(batch.data), batch.target), amped.optimizer).backward();
  EXPECT_TRUE(amped.optimizer.step());
}

TEST_P(InitializeManyTest, AnEnsembleTrainsAsItsModelsAlone) {
  const Batch batch = make_batch(device());
  std::vector<Net> nets{make_net(device(), 1), make_net(device(), 2)};
  std::vector<Tensor> params = nets[0]->parameters();
  for (const Tensor& param : nets[1]->parameters()) params.push_back(param);
  torch::optim::SGD sgd(params, 0.1);
  auto ensemble = initialize(nets, sgd, quiet(OptLevel::O2));
  Tensor loss = at::zeros({}, device());
  for (const auto& model : ensemble.models) loss = loss + loss_of(model(batch.data), batch.target);
  scale_loss(loss, ensemble.optimizers[0]).backward();
  EXPECT_TRUE(ensemble.optimizers[0].step());
  for (uint64_t i = 0; i < 2; ++i) {
    Net alone = make_net(device(), i + 1);
    torch::optim::SGD of_alone(alone->parameters(), 0.1);
    auto amped = initialize(alone, of_alone, quiet(OptLevel::O2));
    train_once(amped, batch);
    EXPECT_TRUE(same_bits(nets[i]->parameters(), alone->parameters()));
  }
  EXPECT_EQ(message_of([] { (void)initialize(std::vector<Net>(), quiet(OptLevel::O2)); }),
            "initialize: expected at least one model, got none");
}

TEST_P(InitializeManyTest, OneModelHasSeveralOptimizers) {
  const Batch batch = make_batch(device());
  Net net = make_net(device());
  torch::optim::SGD sgd(net->first->parameters(), 0.1);
  torch::optim::Adam adam(net->last->parameters(), 1e-2);
  auto [model, optimizers] = initialize(net, {sgd, adam}, quiet(OptLevel::O2));
  const auto before = clones(net->parameters());
  scale_loss(loss_of(model(batch.data), batch.target), optimizers).backward();
  for (Optimizer& optimizer : optimizers) EXPECT_TRUE(optimizer.step());
  EXPECT_FALSE(same_bits(net->first->weight.detach(), before[0]));
  EXPECT_FALSE(same_bits(net->last->weight.detach(), before[before.size() - 2]));
  EXPECT_EQ(optimizers.size(), 2U);
}

TEST_P(InitializeManyTest, AModuleByReferenceHasSeveralOptimizers) {
  torch::nn::LinearImpl net(4, 2);
  net.to(device());
  torch::optim::SGD of_weight({net.weight}, 0.1), of_bias({net.bias}, 0.1);
  const auto [model, optimizers] = initialize(net, {of_weight, of_bias}, quiet(OptLevel::O2));
  EXPECT_EQ(optimizers.size(), 2U);
  EXPECT_EQ(model(make_batch(device()).data).scalar_type(), at::kFloat);
}

TEST_P(InitializeManyTest, ATieRefersToModules) {
  torch::nn::LinearImpl left(4, 3), right(3, 2);
  left.to(device());
  right.to(device());
  torch::optim::SGD sgd({torch::optim::OptimizerParamGroup(left.parameters()),
                         torch::optim::OptimizerParamGroup(right.parameters())},
                        torch::optim::SGDOptions(0.1));
  auto many = initialize(std::tie(left, right), sgd, quiet(OptLevel::O2));
  const auto& [first, second] = many.models;
  EXPECT_EQ(right.weight.scalar_type(), at::kHalf);
  const Tensor before = left.weight.detach().clone();
  const Batch batch = make_batch(device());
  scale_loss(loss_of(second(first(batch.data)), batch.target), many.optimizers).backward();
  EXPECT_TRUE(many.optimizers[0].step());
  EXPECT_FALSE(same_bits(left.weight.detach(), before));
}

TEST_P(InitializeManyTest, TiesOfModelsAndOptimizersHaveNamesAtOnce) {
  torch::nn::LinearImpl left(4, 3), right(3, 2);
  left.to(device());
  right.to(device());
  torch::optim::SGD of_left(left.parameters(), 0.1), of_right(right.parameters(), 0.1);
  const Tensor data = make_batch(device()).data;
  {
    auto amped =
        initialize(std::tie(left, right), std::tie(of_left, of_right), quiet(OptLevel::O2));
    auto& [first, second, first_optimizer, second_optimizer] = amped;
    EXPECT_EQ(&*second, &right);
    EXPECT_EQ(&second_optimizer.wrapped(), &of_right);
    const Tensor before = left.weight.detach().clone();
    const Tensor loss = second(first(data)).square().mean();
    scale_loss(loss, {first_optimizer, second_optimizer}).backward();
    EXPECT_TRUE(first_optimizer.step() && second_optimizer.step());
    EXPECT_FALSE(same_bits(left.weight.detach(), before));
    release(amped);
  }
  torch::optim::SGD of_bias({left.bias}, 0.1), of_weight({left.weight}, 0.1);
  auto amped = initialize(left, std::tie(of_weight, of_bias), quiet(OptLevel::O5));
  auto& [model, weight_optimizer, bias_optimizer] = amped;
  EXPECT_EQ(model(data).scalar_type(), at::kFloat);
  EXPECT_EQ(&bias_optimizer.wrapped(), &of_bias);
  EXPECT_EQ(weight_optimizer.index(), 0);
  EXPECT_EQ(float32_value(amped, left.weight).scalar_type(), at::kFloat);
}

TEST_P(InitializeManyTest, SeveralModelsNeedNoOptimizer) {
  Net left = make_net(device(), 1), right = make_net(device(), 2);
  auto many = initialize(std::make_tuple(left, right), quiet(OptLevel::O5));
  EXPECT_EQ(std::get<1>(many.models)(make_batch(device()).data).scalar_type(), at::kFloat);
  EXPECT_EQ(left->last->weight.scalar_type(), at::kBFloat16);
  release(many);
  EXPECT_EQ(left->last->weight.scalar_type(), at::kFloat);
}

/// A frozen base of 16 bits, and a float32 layer that is added to it.
struct Adapted : torch::nn::Module {
  Adapted(at::ScalarType dtype, at::Device device) {
    base->to(dtype);
    base->register_buffer("scale", at::ones({}, dtype));
    base->weight.set_requires_grad(false);
    base->bias.set_requires_grad(false);
    to(device);
  }
  Tensor forward(const Tensor& x) {
    return base->forward(x.to(base->weight.scalar_type())) + adapter->forward(x);
  }
  torch::nn::Linear base = register_module("base", torch::nn::Linear(4, 3));
  torch::nn::Linear adapter = register_module("adapter", torch::nn::Linear(4, 3));
};

TEST_P(InitializeManyTest, AFrozenBaseStaysAsItIs) {
  for (const char* level : {"O1", "O2", "O4", "O5"}) {
    const bool is_half = level[1] < '4';
    const at::ScalarType dtype = is_half ? at::kHalf : at::kBFloat16;
    const auto net = std::make_shared<Adapted>(dtype, device());
    const auto before = clones(net->base->parameters());
    const auto adapter = net->adapter->weight.to(dtype, /*non_blocking=*/false, /*copy=*/true);
    torch::optim::SGD sgd(net->adapter->parameters(), 0.1);
    auto amped = initialize(net, sgd, Options(level).verbosity(0).loss_scale(64.0));
    train_once(amped, make_batch(device()));
    EXPECT_TRUE(same_bits(net->base->parameters(), before));
    EXPECT_FALSE(same_bits(net->adapter->weight.detach().to(dtype), adapter));
    EXPECT_EQ(core::param_of(net->base->weight), nullptr);
  }
}

TEST_P(InitializeManyTest, WhatIsThawedTrainsByMasters) {
  for (const bool is_in_optimizer : {true, false}) {
    const auto net = std::make_shared<Adapted>(at::kHalf, device());
    torch::optim::SGD sgd(is_in_optimizer ? net->parameters() : net->adapter->parameters(), 0.1);
    auto amped = initialize(net, sgd, quiet(OptLevel::O2).loss_scale(64.0));
    const Batch batch = make_batch(device());
    train_once(amped, batch);
    net->base->weight.set_requires_grad(true);
    if (!is_in_optimizer) amped.optimizer.add_param_group({{net->base->weight}});
    const Tensor before = net->base->weight.detach().clone();
    train_once(amped, batch);
    EXPECT_FALSE(same_bits(net->base->weight.detach(), before));
    EXPECT_TRUE(core::param_of(net->base->weight)->has_master());
  }
}

TEST_P(InitializeManyTest, SaysWhatMastersOfFrozenParametersTake) {
  const Logged logged;
  for (const bool is_in_optimizer : {true, false}) {
    const auto net = std::make_shared<Adapted>(at::kHalf, device());
    torch::optim::SGD sgd(is_in_optimizer ? net->parameters() : net->adapter->parameters(), 0.1);
    (void)initialize(net, sgd, "O2");
  }
  EXPECT_EQ(
      logged.text(),
      "initialize: float32 masters of 2 frozen parameters take 0.0 MiB; leave them out of the "
      "optimizer, and pass them to add_param_group when they are to train\n");
}

struct Spectral : torch::nn::Module {
  Tensor weight = register_parameter("weight", at::ones({4}, at::kComplexFloat));
};

TEST_P(InitializeManyTest, RefusesComplexParametersThatAreToBeUnscaled) {
  const auto net = std::make_shared<Spectral>();
  net->to(device());
  torch::optim::SGD sgd(net->parameters(), 0.1);
  for (const auto level : {OptLevel::O1, OptLevel::O2, OptLevel::O5}) {
    EXPECT_EQ(message_of([&] { (void)initialize(net, sgd, quiet(level)); }),
              "initialize: expected parameter \"weight\" of models[0] to be real, got a complex "
              "one, whose grads cannot be unscaled; make view_as_real of it the parameter, and use "
              "view_as_complex in forward");
  }
  (void)initialize(net, sgd, quiet(OptLevel::O0));
  net->weight.set_requires_grad(false);
  (void)initialize(net, sgd, quiet(OptLevel::O2));
  EXPECT_EQ(net->weight.scalar_type(), at::kComplexFloat);
}

TEST_P(InitializeManyTest, WarnsOfAModelThatMayAverageAnother) {
  const auto said = [&](auto models, const Options& options, bool with_optimizer = true) {
    const Logged logged;
    torch::optim::SGD sgd(std::get<0>(models)->parameters(), 0.1);
    (void)initialize(models, with_optimizer ? OptimizerRefs{sgd} : OptimizerRefs(), options);
    return logged.text();
  };
  const auto twins = [&] { return std::make_tuple(make_net(device()), make_net(device())); };
  const std::string warning =
      "initialize: expected an optimizer to step models[1], got a model like models[0] that none "
      "steps; if it averages models[0], its averages stall in 16 bits: leave it out and use "
      "AveragedModel; if its weights stay as they are, leave it out and use cast_for_inference\n";
  for (const char* level : {"O2", "O5"}) EXPECT_EQ(said(twins(), level), warning);
  for (const char* level : {"O0", "O1", "O4"}) EXPECT_EQ(said(twins(), level), "");
  EXPECT_EQ(said(twins(), Options("O2").verbosity(0)), "");
  EXPECT_EQ(said(twins(), "O2", /*with_optimizer=*/false), "");
  torch::nn::Linear features(4, 3);
  EXPECT_EQ(said(std::make_tuple(make_net(device()), features), "O2"), "");
}

TEST_P(InitializeManyTest, AModelWithoutAnOptimizerGetsNoMasters) {
  Net teacher = make_net(device(), 1), student = make_net(device(), 2);
  torch::optim::SGD sgd(student->parameters(), 0.1);
  auto many =
      initialize(std::make_tuple(teacher, student), OptimizerRefs{sgd}, quiet(OptLevel::O2));
  EXPECT_EQ(teacher->first->weight.scalar_type(), at::kHalf);
  EXPECT_EQ(core::param_of(teacher->first->weight), nullptr);
  EXPECT_TRUE(core::param_of(student->first->weight)->has_master());
}

TEST_P(InitializeManyTest, TwoCallsDoNotKnowEachOther) {
  Net a = make_net(device(), 1), b = make_net(device(), 1);
  torch::optim::SGD of_a(a->parameters(), 0.1), of_b(b->parameters(), 0.1);
  auto amped_a = initialize(a, of_a, quiet(OptLevel::O2));
  auto amped_b = initialize(b, of_b, quiet(OptLevel::O5));
  amped_a.model.amp()->loss_scaler().set_loss_scale(8);
  EXPECT_TRUE(amped_b.model.amp()->loss_scaler().is_identity());
  EXPECT_EQ(a->first->weight.scalar_type(), at::kHalf);
  EXPECT_EQ(b->first->weight.scalar_type(), at::kBFloat16);
}

/// A model of O2 beside one of O1 runs in its own dtype, not in O1's.
TEST_P(InitializeManyTest, OtherLevelsForwardsAreShieldedFromO1) {
  Net net = make_net(device(), 1);
  auto o1 = initialize(make_net(device(), 2), quiet(OptLevel::O1));
  auto o0 = initialize(net, quiet(OptLevel::O0));
  const Batch batch = make_batch(device());
  net->eval();
  const Tensor in_float32 = o0(batch.data);
  o1.amp()->close();
  EXPECT_TRUE(same_bits(in_float32, net->forward(batch.data)));
}

TORCHAMP_ON_EACH_DEVICE(InitializeManyTest);

}  // namespace
}  // namespace torchamp
