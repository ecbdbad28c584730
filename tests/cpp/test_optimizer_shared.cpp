// Optimizers that share a parameter.
#include <ATen/ops/zeros.h>
#include <torchamp/clip.h>
#include <torchamp/optim/sgd.h>

#include <cmath>

#include "errors.h"
#include "net.h"

namespace torchamp {
namespace {

using at::Tensor;

class SharedTest : public LevelTest {
 protected:
  static std::vector<Tensor> params_from(const Net& net, bool first) {
    return first ? std::vector{net->first->weight, net->last->weight}
                 : std::vector{net->last->weight, net->norm->weight};
  }

  /// The reference: each optimizer alone, with unscaled float32 grads.
  static void expect_grads(const Tensor& master, const Tensor& expected) {
    EXPECT_TRUE(at::allclose(master.grad().to(at::kFloat), expected, 1e-2, 1e-4));
  }

  Net net_ = make_net(device());
  torch::optim::SGD one_{params_from(net_, true), 0.5};
  torch::optim::SGD other_{params_from(net_, false), 0.5};
  Batch batch_ = make_batch(device());
};

TEST_P(SharedTest, UnscaleItOnce) {
  Net alone = make_net(device());
  loss_of(alone->forward(batch_.data), batch_.target).backward();
  auto many = initialize(std::make_tuple(net_), OptimizerRefs{one_, other_},
                         quiet(level()).loss_scale(256.0));
  auto& model = std::get<0>(many.models);
  { scale_loss(loss_of(model(batch_.data), batch_.target), many.optimizers).backward(); }
  expect_grads(many.optimizers[0].master_params()[0], alone->first->weight.grad());
  expect_grads(many.optimizers[0].master_params()[1], alone->last->weight.grad());
  expect_grads(many.optimizers[1].master_params()[1], alone->norm->weight.grad());
}

TEST_P(SharedTest, EachStepsIt) {
  auto many = initialize(std::make_tuple(net_), OptimizerRefs{one_, other_},
                         quiet(level()).loss_scale(256.0));
  auto& model = std::get<0>(many.models);
  const Tensor shared = many.optimizers[0].master_params()[1];
  ASSERT_TRUE(shared.is_same(many.optimizers[1].master_params()[0]));
  const Tensor before = shared.detach().clone();
  { scale_loss(loss_of(model(batch_.data), batch_.target), many.optimizers).backward(); }
  const Tensor grad = shared.grad().clone();
  for (auto& optimizer : many.optimizers) EXPECT_TRUE(optimizer.step());
  EXPECT_TRUE(same_bits(shared.detach(), before.sub(grad, 0.5).sub(grad, 0.5)));
  EXPECT_TRUE(
      same_bits(net_->last->weight.detach(), shared.detach().to(net_->last->weight.scalar_type())));
}

TEST_P(SharedTest, ClippingCountsItOnce) {
  auto many = initialize(std::make_tuple(net_), OptimizerRefs{one_, other_},
                         quiet(level()).loss_scale(256.0));
  auto& model = std::get<0>(many.models);
  { scale_loss(loss_of(model(batch_.data), batch_.target), many.optimizers).backward(); }
  double squares = 0;
  for (const Tensor& param : net_->parameters()) {
    const Tensor master = many.optimizers[0].master_weights().master_of(param);
    if (master.defined() && master.grad().defined())
      squares += std::pow(master.grad().norm().item<double>(), 2);
  }
  const Tensor norm = clip_grad_norm_(many.optimizers, 1e-3);
  EXPECT_NEAR(norm.item<double>(), std::sqrt(squares), 1e-5 * std::sqrt(squares));
}

TEST_P(SharedTest, AnOverflowSkipsBoth) {
  auto many = initialize(std::make_tuple(net_), OptimizerRefs{one_, other_},
                         quiet(level()).loss_scale("dynamic"));
  auto& model = std::get<0>(many.models);
  const auto before = clones(net_->parameters());
  {
    scale_loss scaled_loss(loss_of(model(batch_.data), batch_.target), many.optimizers);
    scaled_loss.backward();
    net_->last->weight.grad().fill_(INFINITY);
  }
  for (auto& optimizer : many.optimizers) EXPECT_FALSE(optimizer.step());
  EXPECT_TRUE(same_bits(net_->parameters(), before));
}

/// Whether the shared parameter is as before, after an overflow in it of a backward that only the
/// first optimizer was given, and steps of both.
template <class Sgd>
bool skips_both(Net net, const Options& options, Batch batch, size_t first) {
  Sgd one({net->first->weight, net->last->weight}, 0.5);
  Sgd other({net->last->weight, net->norm->weight}, 0.5);
  auto many = initialize(std::make_tuple(net), OptimizerRefs{one, other}, options);
  const Tensor before = net->last->weight.detach().clone();
  {
    scale_loss scaled_loss(loss_of(std::get<0>(many.models)(batch.data), batch.target),
                           many.optimizers[0]);
    scaled_loss.backward();
    net->last->weight.grad().fill_(INFINITY);
  }
  many.optimizers[first].step();
  many.optimizers[1 - first].step();
  return same_bits(net->last->weight.detach(), before);
}

TEST_P(SharedTest, AnOverflowSkipsTheOneThatWasNotGiven) {
  const Options options = quiet(level()).loss_scale("dynamic");
  for (const size_t first : {0, 1}) {
    EXPECT_TRUE(skips_both<torch::optim::SGD>(make_net(device()), options, batch_, first));
    EXPECT_TRUE(skips_both<optim::FusedSGD>(make_net(device()), options, batch_, first));
  }
}

/// Whether the other optimizer's own parameter is as before, after an overflow in all grads of a
/// backward that only the first was given, and steps of both.
template <class Sgd>
bool skips_what_the_other_owns(Net net, const Options& options, Batch batch, size_t first) {
  Sgd one({net->first->weight, net->last->weight}, 0.5);
  Sgd other({net->last->weight, net->norm->weight}, 0.5);
  auto many = initialize(std::make_tuple(net), OptimizerRefs{one, other}, options);
  const Tensor before = net->norm->weight.detach().clone();
  {
    scale_loss scaled_loss(loss_of(std::get<0>(many.models)(batch.data), batch.target),
                           many.optimizers[0]);
    scaled_loss.backward();
    for (const Tensor& param : net->parameters()) param.grad().fill_(INFINITY);
  }
  const bool first_stepped = many.optimizers[first].step();
  const bool second_stepped = many.optimizers[1 - first].step();
  return !first_stepped && !second_stepped && same_bits(net->norm->weight.detach(), before);
}

TEST_P(SharedTest, AnOverflowSkipsWhatOnlyTheOtherOwns) {
  const Options options = quiet(level()).loss_scale("dynamic");
  for (const size_t first : {0, 1}) {
    EXPECT_TRUE(
        skips_what_the_other_owns<torch::optim::SGD>(make_net(device()), options, batch_, first));
    EXPECT_TRUE(
        skips_what_the_other_owns<optim::FusedSGD>(make_net(device()), options, batch_, first));
  }
}

/// Three optimizers, of which the first two share a parameter.
template <class Sgd>
struct Three {
  Three(at::Device device, const Options& options)
      : net(make_net(device)),
        many(initialize(std::make_tuple(net), OptimizerRefs{first, second, third}, options)) {}

  /// Of the sum of `params`.
  void backward(const std::vector<Tensor>& params, const std::vector<size_t>& given,
                ScaleLossOptions options = {}, double factor = 1.0) {
    std::vector<Optimizer> optimizers;
    for (const size_t i : given) optimizers.push_back(many.optimizers[i]);
    Tensor loss = at::zeros({}, net->last->weight.options().dtype(at::kFloat));
    for (const Tensor& param : params) loss = loss + param.to(at::kFloat).sum() * factor;
    scale_loss(loss, optimizers, options).backward();
  }
  std::vector<bool> steps(const std::vector<size_t>& order) {
    std::vector<bool> taken;
    for (const size_t i : order) taken.push_back(many.optimizers[i].step());
    return taken;
  }

  Net net;
  Sgd first{{net->first->weight, net->last->weight}, 0.5};
  Sgd second{{net->last->weight, net->norm->weight}, 0.5};
  Sgd third{{net->norm->bias}, 0.5};
  AmpedMany<Net> many;
};

/// An overflow in the second optimizer's own parameter, delayed; then a backward of another scale,
/// which was not given the second.
template <class Sgd>
std::vector<bool> steps_after_a_delayed_overflow(at::Device device, const Options& options,
                                                 const std::vector<size_t>& given) {
  Three<Sgd> three(device, Options(options).num_losses(2));
  Net& net = three.net;
  three.backward({net->norm->weight}, given, {0, /*delay_unscale=*/true}, INFINITY);
  three.backward({net->first->weight, net->norm->bias}, {0, 2}, {/*loss_id=*/1}, 0x1p-10);
  return three.steps({0, 2, 1});
}

TEST_P(SharedTest, ADelayedOverflowOfAnotherScaleSkipsThoseThatItWasGiven) {
  const Options options = quiet(level()).loss_scale("dynamic");
  const std::vector<bool> only_second{true, true, false}, not_third{false, true, false};
  using torch::optim::SGD;
  EXPECT_EQ(steps_after_a_delayed_overflow<SGD>(device(), options, {1}), only_second);
  EXPECT_EQ(steps_after_a_delayed_overflow<SGD>(device(), options, {0, 1}), not_third);
  using optim::FusedSGD;
  EXPECT_EQ(steps_after_a_delayed_overflow<FusedSGD>(device(), options, {1}), only_second);
  EXPECT_EQ(steps_after_a_delayed_overflow<FusedSGD>(device(), options, {0, 1}), not_third);
}

/// An overflow in what the first two share, of a backward that only the second was given.
/// LibTorch's optimizers lose the grads at its end.
TEST_P(SharedTest, AStepEndsAnOverflowOnlyIfItDropsTheGrads) {
  Three<optim::FusedSGD> three(device(), quiet(level()).loss_scale("dynamic"));
  const auto overflow = [&] { three.backward({three.net->last->weight}, {1}, {}, INFINITY); };
  overflow();
  EXPECT_EQ(three.steps({2, 0, 1}), std::vector({true, false, false}));
  overflow();
  EXPECT_EQ(three.steps({1}), std::vector{false});
  three.backward({three.net->last->weight}, {0});
  EXPECT_EQ(three.steps({0}), std::vector{true});
}

TEST_P(SharedTest, MayNotBeTakenByAGroupThatIsAdded) {
  torch::optim::SGD third(net_->norm->parameters(), 0.5);
  Net other = make_net(device(), 2);
  torch::optim::SGD of_other(other->parameters(), 0.5);
  auto many =
      initialize(std::make_tuple(net_, other), OptimizerRefs{third, of_other}, quiet(level()));
  const auto add = [&](const Tensor& param) {
    many.optimizers[0].add_param_group(torch::optim::OptimizerParamGroup({param}));
  };
  const std::string expected =
      "Optimizer::add_param_group: expected parameters that are in no group yet, got one of sizes "
      "[2, 16] that an optimizer of this initialize steps already";
  EXPECT_EQ(message_of([&] { add(other->last->weight); }), expected);
  EXPECT_EQ(message_of([&] { add(many.optimizers[1].master_params()[2]); }), expected);
  EXPECT_EQ(message_of([&] { add(net_->last->weight); }), "no error");
}

/// Steps of size one by the first of two optimizers alone; returns how far the master moved.
double moved_by_one_of_two(const OptLevel level, bool other_is_given) {
  torch::nn::Linear net(torch::nn::LinearOptions(2, 2).bias(false));
  const Tensor before = net->weight.detach().clone();
  torch::optim::SGD one(net->parameters(), 0.25), other(net->parameters(), 0.25);
  auto many =
      initialize(std::make_tuple(net), OptimizerRefs{one, other}, quiet(level).loss_scale(1.0));
  std::vector<Optimizer> given = {many.optimizers[0]};
  if (other_is_given) given.push_back(many.optimizers[1]);
  for (int step = 0; step < 2; ++step) {
    { scale_loss(net->weight.to(at::kFloat).sum(), given).backward(); }
    EXPECT_TRUE(many.optimizers[0].step());
    net->zero_grad();
  }
  return before.sub(many.optimizers[0].master_params()[0]).max().item<double>();
}

TEST_P(SharedTest, IsZeroedByTheModelThoughTheOtherNeverSteps) {
  EXPECT_NEAR(moved_by_one_of_two(level(), /*other_is_given=*/true), 0.5, 1e-6);
}

TEST_P(SharedTest, KeepsNoGradsForAnOptimizerThatIsNotUsed) {
  EXPECT_NEAR(moved_by_one_of_two(level(), /*other_is_given=*/false), 0.5, 1e-6);
}

TORCHAMP_AT_LEVELS(SharedTest, OptLevel::O1, OptLevel::O2);

}  // namespace
}  // namespace torchamp
