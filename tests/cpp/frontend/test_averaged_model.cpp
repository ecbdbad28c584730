#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/rnn.h>
#include <torch/serialize.h>
#include <torchamp/averaged_model.h>
#include <torchamp/inference.h>

#include <memory>
#include <sstream>
#include <vector>

#include "checkpoint/float32_saves.h"
#include "core/param.h"
#include "errors.h"
#include "net.h"

namespace torchamp {
namespace {

using at::Tensor;

struct CloneableNetImpl : torch::nn::Cloneable<CloneableNetImpl> {
  CloneableNetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    last = register_module("last", torch::nn::Linear(16, 2));
  }
  Tensor forward(const Tensor& data) { return last(at::relu(norm(first(data)))); }

  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(CloneableNet);

class AveragedModelTest : public LevelTest {
 protected:
  AveragedModelTest() : sgd_(moved(), torch::optim::SGDOptions(0.1)) {}

  void step() {
    amped_.optimizer.zero_grad();
    { scale_loss(loss_of(amped_.model(batch_.data), batch_.target), amped_.optimizer).backward(); }
    amped_.optimizer.step();
  }
  /// What the model's parameters stand for.
  std::vector<Tensor> values() const {
    std::vector<Tensor> found;
    for (const Tensor& param : net_->parameters())
      found.push_back(checkpoint::float32_of(param).clone());
    return found;
  }
  std::vector<Tensor> moved() {
    net_->to(device());
    return net_->parameters();
  }

  CloneableNet net_;
  torch::optim::SGD sgd_;
  Amped<CloneableNet> amped_ = initialize(net_, sgd_, quiet(level()));
  const Batch batch_ = make_batch(device());
};

TEST_P(AveragedModelTest, IsAFloat32CopyOfTheMasters) {
  step();
  AveragedModel averaged(amped_.model);
  const auto expected = values();
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(averaged->parameters()[i].scalar_type(), at::kFloat);
    EXPECT_TRUE(same_bits(averaged->parameters()[i], expected[i]));
  }
  for (const Tensor& buffer : averaged->buffers()) {
    EXPECT_NE(buffer.scalar_type(), at::kHalf);
    EXPECT_NE(buffer.scalar_type(), at::kBFloat16);
  }
  const auto& read = averaged;
  EXPECT_TRUE(same_bits(read(batch_.data), read->forward(batch_.data)));
  EXPECT_EQ(read(batch_.data).scalar_type(), at::kFloat);
  const auto kept = averaged->parameters()[0].clone();
  step();
  EXPECT_TRUE(same_bits(averaged->parameters()[0], kept));
}

TEST_P(AveragedModelTest, OfTheModuleItselfIsTheSame) {
  step();
  AveragedModel of_model(amped_.model, 0.5), of_module(net_, 0.5);
  for (int i = 0; i < 3; ++i) {
    step();
    of_model.update_parameters(amped_.model);
    of_module.update_parameters(net_);
  }
  for (size_t i = 0; i < net_->parameters().size(); ++i) {
    EXPECT_TRUE(same_bits(of_model->parameters()[i], of_module->parameters()[i]));
  }
}

TEST_P(AveragedModelTest, AveragesInASecondModuleAsInAClone) {
  AveragedModel cloned(amped_.model, 0.5), given(amped_.model, CloneableNet(), 0.5);
  for (int i = 0; i < 3; ++i) {
    step();
    cloned.update_parameters(amped_.model);
    given.update_parameters(amped_.model);
  }
  for (size_t i = 0; i < net_->parameters().size(); ++i) {
    EXPECT_TRUE(same_bits(cloned->parameters()[i], given->parameters()[i]));
  }
  const Net without_clone = make_net(device());
  AveragedModel averaged(without_clone, make_net(device()));
  EXPECT_TRUE(same_bits(averaged->parameters()[0], without_clone->parameters()[0]));
}

TEST_P(AveragedModelTest, AThousandSoftUpdatesLeaveNoRounding) {
  AveragedModel averaged(amped_.model, /*decay=*/0.995);
  averaged.update_parameters(amped_.model);
  {
    const torch::NoGradGuard no_grad;
    for (const Tensor& param : amped_.optimizer.master_params()) param.add_(1.0);
  }
  for (int i = 0; i < 1000; ++i) averaged.update_parameters(amped_.model);
  const auto goals = values();
  for (size_t i = 0; i < goals.size(); ++i) {
    const double gap = (goals[i] - averaged->parameters()[i]).abs().max().item<double>();
    EXPECT_LE(gap, 0.0068) << net_->named_parameters().keys()[i];
  }
}

TEST_P(AveragedModelTest, TheMeanIsThatOfTheMasters) {
  AveragedModel averaged(amped_.model);
  std::vector<Tensor> sums;
  for (int i = 0; i < 4; ++i) {
    step();
    averaged.update_parameters(amped_.model);
    const auto now = values();
    for (size_t k = 0; k < now.size(); ++k) {
      i == 0 ? sums.push_back(now[k].to(at::kDouble)) : static_cast<void>(sums[k].add_(now[k]));
    }
  }
  EXPECT_EQ(averaged.n_averaged(), 4);
  for (size_t k = 0; k < sums.size(); ++k) {
    EXPECT_TRUE(at::allclose(averaged->parameters()[k].to(at::kDouble), sums[k] / 4, 1e-6, 1e-6));
  }
  EXPECT_TRUE(same_bits(averaged->norm->running_mean, net_->norm->running_mean.to(at::kFloat)));
}

TEST_P(AveragedModelTest, ASavedOneGoesOn) {
  AveragedModel averaged(amped_.model);
  averaged.update_parameters(amped_.model);
  step();
  averaged.update_parameters(amped_.model);
  std::stringstream file, of_module;
  torch::save(averaged, file);
  AveragedModel resumed(amped_.model);
  torch::load(resumed, file);
  EXPECT_EQ(resumed.n_averaged(), 2);
  torch::save(averaged.module(), of_module);
  torch::load(resumed, of_module);
  EXPECT_EQ(resumed.n_averaged(), 1);
  file.seekg(0);
  torch::load(resumed.module(), file);
  file.seekg(0);
  torch::load(resumed, file);
  step();
  averaged.update_parameters(amped_.model);
  resumed.update_parameters(amped_.model);
  for (size_t i = 0; i < averaged->parameters().size(); ++i) {
    EXPECT_TRUE(same_bits(averaged->parameters()[i], resumed->parameters()[i]));
  }
}

TEST_P(AveragedModelTest, TakesPointersSequentialsAndRecurrentModules) {
  auto pointer = std::make_shared<CloneableNetImpl>();
  pointer->to(at::kBFloat16);
  AveragedModel of_pointer(pointer);
  of_pointer.update_parameters(pointer);
  EXPECT_EQ(of_pointer->first->weight.scalar_type(), at::kFloat);
  torch::nn::Sequential sequential(torch::nn::Linear(4, 2));
  AveragedModel of_sequential(cast_for_inference(sequential, at::kBFloat16));
  EXPECT_EQ(of_sequential->forward(at::ones({1, 4})).scalar_type(), at::kFloat);
  torch::nn::LSTM lstm(4, 4);
  lstm->to(at::kBFloat16);
  AveragedModel of_lstm(lstm);
  EXPECT_EQ(std::get<0>(of_lstm->forward(at::ones({1, 1, 4}))).scalar_type(), at::kFloat);
}

TEST_P(AveragedModelTest, RefusesWhatItCannotAverage) {
  const Net net = make_net(device());
  EXPECT_EQ(message_of([&] { AveragedModel averaged(net); }),
            "AveragedModel: expected a module that clone() copies, got a torchamp::NetImpl, for "
            "which it throws: clone() has not been implemented for torchamp::NetImpl. Subclass "
            "torch::nn::Cloneable<torchamp::NetImpl> instead of torch::nn::Module to inherit the "
            "ability to clone.; give AveragedModel a second module of the class: "
            "AveragedModel(model, copy, decay)");
  EXPECT_EQ(message_of([&] { AveragedModel averaged(net, net); }),
            "AveragedModel: expected a copy with tensors of its own, got parameter 0 of the model "
            "itself; construct a second module");
  EXPECT_EQ(message_of([&] { AveragedModel averaged(net_, 1.5); }),
            "AveragedModel: expected decay to be from 0 to 1, got 1.5");
  torch::nn::Sequential one(torch::nn::Linear(4, 2)), two(torch::nn::Linear(4, 2));
  AveragedModel averaged(one);
  two->push_back(torch::nn::Linear(2, 2));
  EXPECT_EQ(message_of([&] { AveragedModel into(one, two); }),
            "AveragedModel: expected a copy with the model's 2 parameters, got one with 4");
  EXPECT_EQ(
      message_of([&] { AveragedModel into(one, torch::nn::Sequential(torch::nn::Linear(4, 3))); }),
      "AveragedModel: expected parameter 0 of the copy to have the model's sizes, [2, 4], "
      "got [3, 4]");
  EXPECT_EQ(message_of([&] { averaged.update_parameters(two); }),
            "update_parameters: expected a model with the 2 parameters of the AveragedModel, got "
            "one with 4");
}

INSTANTIATE_TEST_SUITE_P(Devices, AveragedModelTest,
                         ::testing::Combine(::testing::ValuesIn(devices()),
                                            ::testing::Values(OptLevel::O0, OptLevel::O2,
                                                              OptLevel::O3, OptLevel::O5)),
                         level_name);

}  // namespace
}  // namespace torchamp
