// fused_step over many steps against LibTorch's optimizers in float64.
#include <ATen/ops/zeros_like.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "device.h"
#include "step_case.h"

namespace torchamp {
namespace {

using at::Tensor;
using oracle::StepOptions;
using List = std::vector<Tensor>;

const std::vector<std::vector<int64_t>> kSizes = {{33, 7}, {1}, {300}, {3, 3, 5, 5}};

class FusedStepTorchTest : public DeviceTest {
 protected:
  FusedStepTorchTest() {
    Random random(80);
    for (const auto& sizes : kSizes) {
      params_.push_back(random.normal(sizes, at::kFloat, device()));
      grads_.push_back(at::zeros_like(params_.back()));
      wide_.push_back(params_.back().to(at::kDouble).requires_grad_());
    }
  }

  StepCase make(StepAlgorithm algorithm, const StepOptions& options) const {
    Lists all;
    all.names.resize(params_.size());
    all.lists = {grads_, params_};
    for (int64_t s = 0; s < states_of(algorithm); ++s) {
      all.lists.emplace_back();
      for (const Tensor& param : params_) all.lists.back().push_back(at::zeros_like(param));
    }
    all.lists.emplace_back();
    StepCase call = make_case(algorithm, {options}, std::move(all), device());
    call.scalars.steps.zero_();
    return call;
  }

  /// Both take the same 20 steps from the same parameters, with equal results.
  void expect_same(StepAlgorithm algorithm, const StepOptions& options,
                   torch::optim::Optimizer& theirs) {
    const StepCase call = make(algorithm, options);
    for (unsigned batch = 0; batch < 20; ++batch) {
      renew_grads(call, 90 + batch);
      for (size_t i = 0; i < wide_.size(); ++i) wide_[i].mutable_grad() = grads_[i].to(at::kDouble);
      run(call);
      theirs.step();
    }
    for (size_t i = 0; i < wide_.size(); ++i) {
      EXPECT_TRUE(params_[i].to(at::kDouble).allclose(wide_[i], 1e-6, 1e-6)) << i;
    }
  }

  List params_, grads_, wide_;
};

TEST_P(FusedStepTorchTest, Adam) {
  StepOptions options;
  options.lr = 0.01;
  options.weight_decay = 0.1;
  auto theirs = torch::optim::AdamOptions(0.01).betas({0.9, 0.99}).weight_decay(0.1);
  torch::optim::Adam adam(wide_, theirs);
  expect_same(StepAlgorithm::kAdam, options, adam);
}

TEST_P(FusedStepTorchTest, AdamW) {
  StepOptions options;
  options.lr = 0.01;
  options.weight_decay = 0.1;
  options.decoupled = true;
  auto theirs = torch::optim::AdamWOptions(0.01).betas({0.9, 0.99}).weight_decay(0.1);
  torch::optim::AdamW adam(wide_, theirs);
  expect_same(StepAlgorithm::kAdam, options, adam);
}

TEST_P(FusedStepTorchTest, Sgd) {
  StepOptions options;
  options.weight_decay = 0.1;
  torch::optim::SGD sgd(wide_, torch::optim::SGDOptions(0.1).weight_decay(0.1));
  expect_same(StepAlgorithm::kSgd, options, sgd);
}

TEST_P(FusedStepTorchTest, SgdWithDampenedMomentum) {
  StepOptions options;
  options.lr = 0.01;
  options.momentum = 0.9;
  options.dampening = 0.3;
  options.weight_decay = 0.1;
  auto theirs = torch::optim::SGDOptions(0.01).momentum(0.9).dampening(0.3).weight_decay(0.1);
  torch::optim::SGD sgd(wide_, theirs);
  expect_same(StepAlgorithm::kMomentum, options, sgd);
}

TEST_P(FusedStepTorchTest, SgdWithNesterovMomentum) {
  StepOptions options;
  options.lr = 0.01;
  options.momentum = 0.9;
  options.nesterov = true;
  torch::optim::SGD sgd(wide_, torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(true));
  expect_same(StepAlgorithm::kMomentum, options, sgd);
}

TORCHAMP_ON_EACH_DEVICE(FusedStepTorchTest);

}  // namespace
}  // namespace torchamp
