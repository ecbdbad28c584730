// release, and torch::save and torch::load of nets that initialize has cast.
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adam.h>

#include <memory>
#include <sstream>

#include "autocast/open_autocast.h"
#include "checkpoints.h"
#include "errors.h"

namespace torchamp {
namespace {

std::vector<Tensor> tensors_of(const Net& net) {
  std::vector<Tensor> tensors = net->parameters();
  for (const Tensor& buffer : net->buffers()) tensors.push_back(buffer);
  return tensors;
}

/// What a checkpoint holds of the net: float32, with the masters' values.
std::vector<Tensor> values_of(const Net& net, Amp& amp) {
  std::vector<Tensor> values;
  for (const Tensor& tensor : tensors_of(net)) values.push_back(amp.value(tensor).clone());
  return values;
}

std::vector<Tensor> values_of(const Training& training) {
  return values_of(training.net, *training.amped.model.amp());
}

/// A net that torchamp has never seen, and what LibTorch reads into it.
template <class Value>
Net loaded_from(const Value& saved, at::Device device) {
  std::stringstream file;
  torch::save(saved, file);
  Net net = make_net(device, 9);
  torch::load(net, file, device);
  return net;
}

torch::optim::SGDParamState& state_of(torch::optim::SGD& sgd, const Tensor& param) {
  auto& state = sgd.state()[param.unsafeGetTensorImpl()];
  if (state == nullptr) state = std::make_unique<torch::optim::SGDParamState>();
  return static_cast<torch::optim::SGDParamState&>(*state);
}

void copy_momenta(Training& from, const Net& net, torch::optim::SGD& to) {
  const auto params = net->parameters(), others = from.net->parameters();
  for (size_t i = 0; i < params.size(); ++i) {
    const Tensor momentum = state_of(from.own, others[i]).momentum_buffer();
    state_of(to, params[i]).momentum_buffer(momentum.clone());
  }
}

void plain_step(Net& net, torch::optim::Optimizer& optimizer, const Batch& batch) {
  optimizer.zero_grad();
  loss_of(net->forward(batch.data), batch.target).backward();
  optimizer.step();
}

/// torch's batch norms of float16 weights need a GPU.
Options without_masters() {
  return quiet(OptLevel::O3).keep_batchnorm_fp32(true);
}

/// Every level, and without master weights.
std::vector<Options> all_options() {
  std::vector<Options> all;
  for (const OptLevel level :
       {OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O4, OptLevel::O5}) {
    all.push_back(quiet(level));
  }
  all.push_back(without_masters());
  all.push_back(quiet(OptLevel::O5).master_weights(false));
  return all;
}

class ReleaseTest : public DeviceTest {
 protected:
  static Training trained(const Options& options, int steps = 3) {
    Training training(device(), options);
    for (int i = 0; i < steps; ++i) training.step();
    return training;
  }
};

TEST_P(ReleaseTest, ParametersAreTheMasters) {
  for (const Options& options : all_options()) {
    SCOPED_TRACE(name(options.resolve().opt_level));
    Training training = trained(options);
    const auto values = values_of(training), momenta = training.momenta();
    release(training.amped);
    EXPECT_TRUE(same_bits(tensors_of(training.net), values));
    const auto& stepped = training.own.param_groups()[0].params();
    const auto params = training.net->parameters();
    for (size_t i = 0; i < params.size(); ++i) {
      EXPECT_TRUE(stepped[i].is_same(params[i]));
      EXPECT_FALSE(params[i].grad().defined());
      const Tensor momentum = state_of(training.own, params[i]).momentum_buffer();
      EXPECT_TRUE(same_bits(momentum, momenta[i].to(at::kFloat)));
    }
    EXPECT_EQ(training.own.state().size(), params.size());
  }
}

TEST_P(ReleaseTest, AlsoWhatWasRemovedFromTheOptimizer) {
  for (const Options& options : all_options()) {
    SCOPED_TRACE(name(options.resolve().opt_level));
    Training training = trained(options);
    const auto values = values_of(training);
    auto& params = training.own.param_groups()[0].params();
    params.erase(params.begin());
    training.amped.optimizer.zero_grad();
    release(training.amped);
    EXPECT_TRUE(same_bits(tensors_of(training.net), values));
  }
}

TEST_P(ReleaseTest, DropsGradsAndOverflows) {
  for (const bool delays : {false, true}) {
    Training training = trained(quiet(OptLevel::O2));
    ScaleLossOptions options;
    options.delay_unscale = delays;
    {
      scale_loss scaled_loss(training.loss(), training.optimizer(), options);
      scaled_loss.backward();
      training.net->last->bias.grad().fill_(INFINITY);
    }
    const auto values = values_of(training);
    release(training.amped);
    for (const Tensor& param : training.net->parameters()) EXPECT_FALSE(param.grad().defined());
    training.own.step();
    EXPECT_TRUE(same_bits(tensors_of(training.net), values));
  }
}

TEST_P(ReleaseTest, ItTrainsAsAPlainNet) {
  for (const Options& options : all_options()) {
    SCOPED_TRACE(name(options.resolve().opt_level));
    Training training = trained(options);
    release(training.amped);
    Net net = loaded_from(training.net, device());
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    copy_momenta(training, net, sgd);
    for (int i = 0; i < 3; ++i) {
      plain_step(training.net, training.optimizer().wrapped(), training.batch);
      plain_step(net, sgd, training.batch);
    }
    EXPECT_TRUE(same_bits(tensors_of(training.net), tensors_of(net)));
    EXPECT_EQ(casting_to(device().type()), std::nullopt);
  }
}

TEST_P(ReleaseTest, ASecondPhaseWithANewOptimizer) {
  Net net = make_net(device());
  const Batch batch = make_batch(device());
  auto first = std::make_unique<torch::optim::SGD>(net->parameters(), 0.1);
  auto amped = initialize(net, *first, quiet(OptLevel::O2));
  scale_loss(loss_of(amped.model(batch.data), batch.target), amped.optimizer).backward();
  amped.optimizer.step();
  const auto values = values_of(net, *amped.model.amp());
  first.reset();
  release(amped);
  EXPECT_TRUE(same_bits(tensors_of(net), values));
  torch::optim::Adam adam(net->last->parameters(), 0.1);
  auto again = initialize(net, adam, quiet(OptLevel::O5));
  scale_loss(loss_of(again.model(batch.data), batch.target), again.optimizer).backward();
  EXPECT_TRUE(again.optimizer.step());
}

TEST_P(ReleaseTest, TorchSaveWritesFloat32WithTheMasters) {
  for (const Options& options : all_options()) {
    SCOPED_TRACE(name(options.resolve().opt_level));
    Training training = trained(options);
    const auto values = values_of(training);
    EXPECT_TRUE(same_bits(tensors_of(loaded_from(training.net, device())), values));
    EXPECT_TRUE(same_bits(tensors_of(loaded_from(training.amped.model, device())), values));
    std::stringstream file;
    std::vector<Tensor> params;
    torch::save(training.net->parameters(), file);
    torch::load(params, file, device());
    EXPECT_TRUE(same_bits(params, {values.begin(), values.begin() + params.size()}));
    training.step();
  }
}

TEST_P(ReleaseTest, TorchSaveWritesFloat32WhenTheMastersAreGone) {
  Net net = make_net(device());
  {
    torch::optim::SGD sgd(net->parameters(), 0.1);
    (void)initialize(net, sgd, quiet(OptLevel::O2));
  }
  const Tensor rounded = net->first->weight.to(at::kFloat);
  EXPECT_TRUE(same_bits(loaded_from(net, device())->first->weight, rounded));
}

TEST_P(ReleaseTest, TorchLoadIntoAModelReachesTheMasters) {
  std::stringstream file;
  const Net saved = make_net(device(), 7);
  torch::save(saved, file);
  for (const Options& options : all_options()) {
    SCOPED_TRACE(name(options.resolve().opt_level));
    Training training = trained(options, 1);
    file.seekg(0);
    torch::load(training.amped.model, file, device());
    std::vector<Tensor> expected = tensors_of(saved);
    for (size_t i = 0; i < expected.size(); ++i) {
      const Tensor held = tensors_of(training.net)[i];
      EXPECT_TRUE(same_bits(held, expected[i].to(held.scalar_type())));
    }
    if (!options.resolve().master_weights.value_or(true)) continue;
    EXPECT_TRUE(same_bits(values_of(training), expected));
    training.step();
  }
}

TEST_P(ReleaseTest, ATorchLoadThatThrowsChangesNothing) {
  std::stringstream other_sizes, other_names;
  torch::nn::Sequential sequential(torch::nn::Linear(4, 16));
  torch::save(sequential, other_names);
  Net net = make_net(device());
  net->last->weight.set_data(at::ones({2, 2}));
  torch::save(net, other_sizes);
  Training training = trained(quiet(OptLevel::O2));
  const Snapshot before(training);
  const std::string message =
      message_of([&] { torch::load(training.amped.model, other_sizes, device()); });
  EXPECT_TRUE(contains(message, "\"last.weight\" of the file to have the model's sizes, [2, 16]"))
      << message;
  EXPECT_NE(message_of([&] { torch::load(training.amped.model, other_names, device()); }),
            "no error");
  expect_same(training, before);
  EXPECT_TRUE(training.optimizer().step());
}

TORCHAMP_ON_EACH_DEVICE(ReleaseTest);

}  // namespace
}  // namespace torchamp
