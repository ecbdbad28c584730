// A program sees one parameter, the model's: what optimizers find in it, and what it shows.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torchamp/optim/adam.h>
#include <torchamp/optim/sgd.h>

#include <cmath>
#include <functional>
#include <stdexcept>

#include "core/param.h"
#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

/// SGD over a list of its own, by a closure if it gets one.
class OwnList : public torch::optim::Optimizer {
 public:
  OwnList(const std::vector<Tensor>& params, double rate)
      : Optimizer({torch::optim::OptimizerParamGroup(params)},
                  std::make_unique<torch::optim::SGDOptions>(rate)),
        params_(params) {}

  Tensor step(LossClosure closure = nullptr) override {
    Tensor loss;
    if (closure) {
      const at::AutoGradMode grad_mode(true);
      loss = closure();
    }
    const at::NoGradGuard no_grad;
    if (look) look();
    for (const Tensor& param : params_) {
      if (param.grad().defined()) Tensor(param).sub_(param.grad(), defaults().get_lr());
      if (throws) throw std::runtime_error("mine");
    }
    return loss;
  }

  std::function<void()> look;
  bool throws = false;

 private:
  std::vector<Tensor> params_;
};

template <class O>
struct Trained : TrainingOf<O> {
  using TrainingOf<O>::TrainingOf;

  std::vector<Tensor> masters() const {
    std::vector<Tensor> all;
    for (const Tensor& param : this->net->parameters()) {
      all.push_back(core::param_of(param)->master);
    }
    return clones(all);
  }
  bool is_rounded() const {
    bool all = true;
    for (const Tensor& param : this->net->parameters()) {
      all &= core::param_of(param)->is_rounded_master();
    }
    return all;
  }
};

class BorrowTest : public LevelTest {
 protected:
  static Options options() {
    return quiet(level()).loss_scale(level() == OptLevel::O5 ? 1 : 1024.0);
  }
};

TEST_P(BorrowTest, AnOptimizerFindsFloat32InTheParametersThatItWasGiven) {
  Trained<OwnList> run(device(), options());
  Trained<torch::optim::SGD> expected(device(), options());
  const auto params = run.net->parameters();
  const Tensor weight = run.net->first->weight, view = weight.view({-1});
  int hooks = 0, looks = 0;
  weight.register_hook([&](const Tensor&) { ++hooks; });
  const std::string narrow = dtypes_of(params);
  run.own.look = [&] {
    ++looks;
    const auto held = run.net->parameters();
    for (size_t i = 0; i < params.size(); ++i) {
      EXPECT_TRUE(params[i].is_same(held[i]));
      EXPECT_EQ(params[i].scalar_type(), at::kFloat);
      EXPECT_EQ(params[i].grad().scalar_type(), at::kFloat);
      EXPECT_TRUE(params[i].is_leaf() && params[i].requires_grad());
      EXPECT_TRUE(run.own.param_groups()[0].params()[i].is_same(params[i]));
    }
  };
  for (int step = 1; step <= 3; ++step) {
    run.step();
    expected.step();
    EXPECT_EQ(dtypes_of(params), narrow);
    EXPECT_TRUE(run.is_rounded());
    EXPECT_TRUE(same_bits(run.masters(), expected.masters()));
    EXPECT_TRUE(same_bits(view.detach(), weight.detach().view({-1})));
    EXPECT_EQ(hooks, step);
    EXPECT_EQ(looks, step);
  }
}

TEST_P(BorrowTest, WhatAStepDoesToGradsStays) {
  Trained<OwnList> run(device(), options());
  run.backward();
  const auto grads = [&] {
    std::vector<Tensor> all;
    for (const Tensor& param : run.net->parameters()) all.push_back(param.grad());
    return all;
  };
  const std::string dtypes = dtypes_of(grads());
  run.optimizer().step();
  EXPECT_EQ(dtypes_of(grads()), dtypes);
  run.own.look = [&] {
    for (const Tensor& param : run.net->parameters()) param.grad().zero_();
  };
  run.optimizer().zero_grad();
  run.backward();
  const auto before = run.masters();
  run.optimizer().step();
  EXPECT_TRUE(same_bits(run.masters(), before));
  for (const Tensor& grad : grads()) EXPECT_EQ(grad.count_nonzero().item<int64_t>(), 0);
}

template <class O>
void expect_states_of_parameters(at::Device device, const Options& options) {
  Trained<O> run(device, options);
  const auto params = run.net->parameters();
  run.step();
  EXPECT_EQ(run.own.state().size(), params.size());
  for (const Tensor& param : params) {
    EXPECT_EQ(run.own.state().count(param.unsafeGetTensorImpl()), 1U);
  }
  run.optimizer().master_params();
  const auto& held = run.optimizer().param_groups()[0].params();
  for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(held[i].is_same(params[i]));
}

TEST_P(BorrowTest, GroupsAndStatesAreOfTheModelsParameters) {
  expect_states_of_parameters<torch::optim::Adam>(device(), options());
  expect_states_of_parameters<optim::FusedAdam>(device(), options());
}

TEST_P(BorrowTest, FusedStatesThatTheProgramHasClearedStartAnew) {
  Trained<optim::FusedAdam> run(device(), options());
  run.step();
  run.own.state().clear();
  run.step();
  for (const Tensor& param : run.net->parameters()) {
    const auto& state = run.own.state().at(param.unsafeGetTensorImpl());
    EXPECT_EQ(static_cast<optim::FusedParamState&>(*state).get("step").item<double>(), 1);
  }
}

TEST_P(BorrowTest, AnExceptionInAStepLeavesModelAndMastersAlike) {
  Trained<OwnList> run(device(), options());
  run.backward();
  const auto before = run.masters();
  const std::string narrow = dtypes_of(run.net->parameters());
  std::vector<Tensor> grads;
  for (const Tensor& param : run.net->parameters()) grads.push_back(param.grad());
  run.own.throws = true;
  EXPECT_EQ(message_of([&] { run.optimizer().step(); }), "mine");
  EXPECT_EQ(dtypes_of(run.net->parameters()), narrow);
  EXPECT_TRUE(run.is_rounded());
  EXPECT_FALSE(same_bits(run.masters()[0], before[0])) << "it was stepped";
  EXPECT_TRUE(same_bits(run.masters()[1], before[1]));
  for (size_t i = 0; i < grads.size(); ++i) {
    EXPECT_TRUE(run.net->parameters()[i].grad().is_same(grads[i]));
  }
  run.own.throws = false;
  run.step();
}

TEST_P(BorrowTest, AClosureFindsTheModelAsItIsOutsideOfAStep) {
  Trained<OwnList> run(device(), options());
  Trained<torch::optim::SGD> expected(device(), options());
  const std::string narrow = dtypes_of(run.net->parameters());
  for (int step = 0; step < 2; ++step) {
    expected.step();
    run.optimizer().step([&] {
      EXPECT_EQ(dtypes_of(run.net->parameters()), narrow);
      EXPECT_TRUE(run.is_rounded());
      run.optimizer().zero_grad();
      const Tensor loss = run.loss();
      scale_loss(loss, run.optimizer()).backward();
      return loss;
    });
    EXPECT_TRUE(same_bits(run.masters(), expected.masters()));
  }
}

/// Of all parameters, by a rate of 1 and grads that LibTorch clips to a norm of 0.5.
template <class O>
double norm_of_clipped_update(at::Device device, const Options& options) {
  Trained<O> run(device, options, 1.0);
  scale_loss(run.loss() * 100.0, run.optimizer()).backward();
  torch::nn::utils::clip_grad_norm_(run.net->parameters(), 0.5);
  const auto before = run.masters();
  run.optimizer().step();
  const auto after = run.masters();
  double squares = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    squares += (after[i] - before[i]).square().sum().template item<double>();
  }
  return std::sqrt(squares);
}

TEST_P(BorrowTest, LibTorchsClippingClipsTheStep) {
  EXPECT_NEAR(norm_of_clipped_update<torch::optim::SGD>(device(), options()), 0.5, 0.005);
  EXPECT_NEAR(norm_of_clipped_update<optim::FusedSGD>(device(), options()), 0.5, 0.005);
}

/// By a rate of 1: in place of what masters show, and where they show none.
template <class O>
void expect_grads_of_masters_count(at::Device device, const Options& options) {
  Trained<O> run(device, options, 1.0);
  for (const bool is_alone : {true, false}) {
    run.optimizer().zero_grad();
    if (!is_alone) run.backward();
    for (const Tensor& master : run.optimizer().master_params()) {
      master.mutable_grad() = master.detach() - 0.75;
    }
    run.optimizer().step();
    for (const Tensor& master : run.masters()) {
      EXPECT_TRUE(at::allclose(master, at::full_like(master, 0.75), 1e-3, 1e-3));
    }
  }
}

TEST_P(BorrowTest, GradsThatTheProgramPutsOnMastersCount) {
  expect_grads_of_masters_count<torch::optim::SGD>(device(), options());
  expect_grads_of_masters_count<optim::FusedSGD>(device(), options());
}

/// Of an optimizer, those of all parameters with masters or of none.
template <class O>
void expect_true_grads(at::Device device, const Options& options) {
  Trained<O> run(device, options);
  const bool is_scaled = *options.resolve().loss_scale.fixed != 1;
  const std::string narrow = dtypes_of(run.net->parameters());
  const auto grads = [&] {
    std::vector<Tensor> all;
    for (const Tensor& param : run.net->parameters()) all.push_back(param.grad());
    return all;
  };
  run.backward();
  EXPECT_EQ(dtypes_of(grads()), is_scaled ? "Float Float Float Float Float Float" : narrow);
  const auto before = clones(grads());
  scale_loss(run.net->last->bias.to(at::kFloat).sum() * 3, run.optimizer()).backward();
  EXPECT_EQ(dtypes_of(grads()), "Float Float Float Float Float Float");
  for (size_t i = 0; i < before.size(); ++i) {
    const bool is_bias = run.net->parameters()[i].is_same(run.net->last->bias);
    EXPECT_TRUE(same_bits(grads()[i], before[i].to(at::kFloat) + (is_bias ? 3 : 0)));
  }
}

TEST_P(BorrowTest, GradsAreUnscaledAndOfOneDtype) {
  expect_true_grads<torch::optim::SGD>(device(), options());
  expect_true_grads<optim::FusedSGD>(device(), options());
}

/// That writes are counted: those of LibTorch's optimizers, through data(), are not.
TEST_P(BorrowTest, StepsOfAWrappedOptimizerOfTheProgramsOwnAreWarnedOf) {
  Trained<OwnList> run(device(), options().verbosity(1));
  const Logged logged;
  for (int step = 0; step < 2; ++step) {
    run.backward();
    run.own.step();
  }
  EXPECT_TRUE(contains(logged.text(), "expected step() of the optimizer that initialize returned"));
}

/// Gives a parameter a float32 grad, whatever its dtype.
struct Widened : torch::autograd::Function<Widened> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& param) {
    return param.to(at::kFloat);
  }
  static std::vector<Tensor> backward(torch::autograd::AutogradContext*,
                                      const std::vector<Tensor>& grads) {
    return grads;
  }
};

TEST_P(BorrowTest, GradsHaveTheDtypeOfTheirParametersInABackward) {
  Trained<torch::optim::SGD> run(device(), options());
  const Tensor bias = run.net->last->bias;
  for (int step = 0; step < 2; ++step) {
    run.optimizer().zero_grad();
    scale_loss scaled_loss(Widened::apply(bias).sum(), run.optimizer());
    scaled_loss.backward();
    EXPECT_EQ(bias.grad().scalar_type(), bias.scalar_type());
  }
}

TORCHAMP_AT_LEVELS(BorrowTest, OptLevel::O2, OptLevel::O5);

class OptimizerStatesTest : public DeviceTest {};

/// Adagrad makes its sums when it is constructed.
TEST_P(OptimizerStatesTest, Of16BitsFromBeforeInitializeBecomeFloat32) {
  Net net = make_net(device());
  net->to(at::kBFloat16);
  torch::optim::Adagrad adagrad(net->parameters(), 0.1);
  const auto sum = [&]() -> const Tensor& {
    const auto& state = *adagrad.state().at(net->first->weight.unsafeGetTensorImpl());
    return static_cast<const torch::optim::AdagradParamState&>(state).sum();
  };
  EXPECT_EQ(sum().scalar_type(), at::kBFloat16);
  auto amped = initialize(net, adagrad, quiet(OptLevel::O5));
  const Batch batch = make_batch(device());
  scale_loss(loss_of(amped.model(batch.data), batch.target), amped.optimizer).backward();
  EXPECT_TRUE(amped.optimizer.step());
  EXPECT_EQ(sum().scalar_type(), at::kFloat);
}

TEST_P(OptimizerStatesTest, OfAnUnknownClassFromBeforeInitializeAreWarnedOf) {
  for (const bool has_states : {false, true}) {
    Trained<OwnList> run(device(), Options("O2").loss_scale(1024.0));
    auto& states = run.own.state();
    void* const key = run.net->first->weight.unsafeGetTensorImpl();
    if (has_states) states[key] = std::make_unique<torch::optim::SGDParamState>();
    const Logged logged;
    for (int step = 0; step < 2; ++step) run.step();
    EXPECT_EQ(contains(logged.text(), "a class of optimizers that torchamp does not know"),
              has_states);
  }
}

TORCHAMP_ON_EACH_DEVICE(OptimizerStatesTest);

}  // namespace
}  // namespace torchamp
