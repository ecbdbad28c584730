// Tests of bugs that users of other mixed-precision implementations reported.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/cloneable.h>
#include <torchamp/serialize.h>

#include <cstdio>
#include <filesystem>

#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

class RegressionTest : public LevelTest {
 protected:
  static Options options() { return quiet(level()).loss_scale("dynamic"); }
  static Tensor evaluate(Training& training) {
    const torch::NoGradGuard no_grad;
    training.net->eval();
    return training.amped.model(training.batch.data);
  }
};

TEST_P(RegressionTest, ALossThatIsAlwaysNaNStopsAtTheFloorAndChangesNothing) {
  Training training(device(), options().min_loss_scale(128.0));
  const auto before = clones(training.net->parameters());
  for (int step = 0; step < 40; ++step) {
    training.optimizer().zero_grad();
    { scale_loss(training.loss() * NAN, training.optimizer()).backward(); }
    EXPECT_FALSE(training.optimizer().step());
  }
  EXPECT_EQ(training.scaler().loss_scale(), 128.0);
  EXPECT_TRUE(same_bits(training.net->parameters(), before));
}

TEST_P(RegressionTest, FiftyModelsLeaveNothingBehind) {
  std::vector<std::weak_ptr<Amp>> amps;
  for (int i = 0; i < 50; ++i) {
    Training training(device(), options(), /*seed=*/i);
    training.step();
    EXPECT_TRUE(training.loss().isfinite().item<bool>()) << i;
    amps.push_back(training.amped.model.amp());
  }
  for (const auto& amp : amps) EXPECT_TRUE(amp.expired());
}

TEST_P(RegressionTest, AModelThatWasLoadedIsWhatIsEvaluated) {
  const auto path = std::filesystem::temp_directory_path() /
                    (std::string("torchamp_regressions_") + name(level()));
  Training saved(device(), options(), 1), loaded(device(), options(), 2);
  saved.step();
  save(saved.amped, path.string());
  const Tensor expected = evaluate(saved);
  EXPECT_FALSE(same_bits(evaluate(loaded), expected));
  load(loaded.amped, path.string());
  EXPECT_TRUE(same_bits(evaluate(loaded), expected));
  std::filesystem::remove(path);
}

TEST_P(RegressionTest, AForwardWithoutGradsBeforeOneWithTakesNoGradsAway) {
  Training training(device(), options());
  {
    const torch::NoGradGuard no_grad;
    training.loss();
  }
  { scale_loss(training.loss(), training.optimizer()).backward(); }
  for (const Tensor& grad : training.grads()) EXPECT_TRUE(grad.defined());
}

/// y = x² with a custom backward.
struct Square : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list grads) {
    const Tensor x = context->get_saved_variables()[0];
    EXPECT_EQ(grads[0].scalar_type(), x.scalar_type());
    return {grads[0] * x * 2};
  }
};

TEST_P(RegressionTest, AnAutogradFunctionGetsGradsOfItsInputsType) {
  Training training(device(), options().loss_scale(128.0));
  const Tensor loss = Square::apply(training.amped.model(training.batch.data)).mean();
  { scale_loss(loss, training.optimizer()).backward(); }
  EXPECT_TRUE(training.optimizer().step());
}

/// A custom norm with its own weights and statistics.
struct OwnNormImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor normed = (x - x.mean(0)) / (x.var(0, /*unbiased=*/false) + 1e-3).sqrt();
    mean = mean * 0.9 + x.mean(0).detach() * 0.1;
    return linear(normed * weight);
  }

  Tensor weight = register_parameter("weight", at::ones({4}));
  Tensor mean = register_buffer("mean", at::zeros({4}));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(4, 2));
};

TEST_P(RegressionTest, ACustomNormTrains) {
  const auto net = std::make_shared<OwnNormImpl>();
  net->to(device());
  torch::optim::SGD sgd(net->parameters(), 0.5);
  auto [model, optimizer] = initialize(net, sgd, options());
  const Batch batch = make_batch(device());
  const auto loss = [&, &model = model] { return loss_of(model(batch.data), batch.target); };
  const float before = loss().item().toFloat();
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    { scale_loss(loss(), optimizer).backward(); }
    EXPECT_TRUE(optimizer.step());
  }
  EXPECT_LT(loss().item().toFloat(), before);
}

TORCHAMP_AT_LEVELS(RegressionTest, OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O5);

class UpdateTest : public DeviceTest {};

/// Updates too small for the model's dtype still accumulate.
TEST_P(UpdateTest, UpdatesBelowTheModelsPrecisionAddUpInTheMasters) {
  for (const OptLevel level : {OptLevel::O2, OptLevel::O5}) {
    Training training(device(), quiet(level));
    training.sgd.param_groups()[0].options().set_lr(1e-7);
    const auto model_before = clones(training.net->last->parameters());
    const Tensor weight = training.net->last->weight;
    const auto& amp = training.amped.model.amp();
    const Tensor master_before = amp->value(weight);
    training.step();
    EXPECT_FALSE(same_bits(amp->value(weight), master_before)) << level;
    EXPECT_TRUE(same_bits(training.net->last->parameters(), model_before)) << level;
    training.sgd.param_groups()[0].options().set_lr(1e-4);
    for (int step = 0; step < 200; ++step) training.step();
    EXPECT_FALSE(same_bits(training.net->last->parameters(), model_before)) << level;
  }
}

TEST_P(UpdateTest, ScalesStayFiniteOverManyCleanSteps) {
  LossScalerOptions options;
  options.rule.growth_interval = 1;
  options.rule.max_scale = INFINITY;
  LossScaler scaler(options, device());
  for (int step = 0; step < 100000; ++step) scaler.update();
  EXPECT_TRUE(std::isfinite(scaler.loss_scale()));
  EXPECT_TRUE(std::isfinite(scaler.inv_scale().item<float>()));
}

TORCHAMP_ON_EACH_DEVICE(UpdateTest);

}  // namespace
}  // namespace torchamp
