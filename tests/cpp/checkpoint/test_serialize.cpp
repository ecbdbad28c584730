#include <torch/csrc/jit/serialization/import.h>

#include <chrono>
#include <functional>
#include <future>
#include <sstream>

#include "checkpoints.h"
#include "errors.h"

namespace torchamp {
namespace {

class ResumeTest : public LevelTest {
 protected:
  static Training make(uint64_t seed) { return {device(), quiet(level()), seed}; }
};

TEST_P(ResumeTest, LoadingTheStartForgetsTheMomentum) {
  const File file;
  Training fresh = make(1), resumed = make(2);
  save(fresh.amped, file.path());
  resumed.step();
  load(resumed.amped, file.path());
  EXPECT_TRUE(resumed.own.state().empty());
  fresh.step();
  resumed.step();
  expect_same(resumed, Snapshot(fresh));
}

TEST_P(ResumeTest, AnArchiveHoldsTheSame) {
  Training whole = make(1), resumed = make(2);
  whole.step();
  if (default_properties(level()).loss_scale.dynamic()) whole.overflow();
  torch::serialize::OutputArchive written;
  save(whole.amped, written);
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive read;
  read.load_from(stream);
  load(resumed.amped, read);
  expect_same(resumed, Snapshot(whole));
}

/// Its steps begin a save in another thread.
struct SavedInStep : torch::optim::SGD {
  using SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override {
    saver = std::async(std::launch::async, save);
    EXPECT_EQ(saver.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
    return SGD::step(std::move(closure));
  }
  std::function<void()> save;
  std::future<void> saver;
};

TEST_P(ResumeTest, ASaveInAnotherThreadWaitsForTheStep) {
  Net net = make_net(device());
  SavedInStep sgd(net->parameters(), 0.1);
  auto amped = initialize(net, sgd, quiet(level()).loss_scale(64.0));
  std::stringstream file;
  sgd.save = [&] { torch::save(amped.model, file); };
  const Batch batch = make_batch(device());
  scale_loss(loss_of(amped.model(batch.data), batch.target), amped.optimizer).backward();
  EXPECT_TRUE(amped.optimizer.step());
  sgd.saver.get();
  Net saved = make_net(device());
  torch::load(saved, file);
  for (const auto& param : net->named_parameters()) {
    EXPECT_TRUE(same_bits(saved->named_parameters()[param.key()].detach(),
                          float32_value(amped, param.value()).detach()));
  }
}

TORCHAMP_AT_LEVELS(ResumeTest, OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3, OptLevel::O4,
                   OptLevel::O5);

class SerializeTest : public DeviceTest {
 protected:
  File file_;
};

/// Two models, each with its optimizer and its loss.
struct Pair {
  Pair(at::Device device, uint64_t seed)
      : left(make_net(device, seed)),
        right(make_net(device, seed + 1)),
        of_left(left->parameters(), 0.1),
        of_right(right->parameters(), 1e-2),
        many(initialize(std::make_tuple(left, right), OptimizerRefs{of_left, of_right},
                        quiet(OptLevel::O2).num_losses(2))) {}

  void step(const Batch& batch) {
    for (auto& optimizer : many.optimizers) optimizer.zero_grad();
    const Tensor of_one = loss_of(std::get<0>(many.models)(batch.data), batch.target);
    const Tensor of_other = loss_of(std::get<1>(many.models)(batch.data), batch.target);
    { scale_loss(of_one, many.optimizers[0], {0, false}).backward(); }
    { scale_loss(of_other, many.optimizers[1], {1, false}).backward(); }
    for (auto& optimizer : many.optimizers) optimizer.step();
  }
  Amp& amp() { return *std::get<0>(many.models).amp(); }

  Net left, right;
  torch::optim::SGD of_left;
  torch::optim::Adam of_right;
  AmpedMany<Net, Net> many;
};

TEST_P(SerializeTest, SeveralModelsOptimizersAndLossesResume) {
  const Batch batch = make_batch(device());
  Pair whole(device(), 1), resumed(device(), 3);
  whole.step(batch);
  whole.amp().loss_scaler(1).set_loss_scale(512);
  save(whole.many, file_.path());
  load(resumed.many, file_.path());
  whole.step(batch);
  resumed.step(batch);
  EXPECT_TRUE(same_bits(resumed.left->parameters(), whole.left->parameters()));
  EXPECT_TRUE(same_bits(resumed.right->parameters(), whole.right->parameters()));
  EXPECT_EQ(resumed.amp().loss_scaler(0).loss_scale(), 65536);
  EXPECT_EQ(resumed.amp().loss_scaler(1).loss_scale(), 512);
}

TEST_P(SerializeTest, AProgramsOwnScriptModuleIsSavedAsItIs) {
  Training training(device(), quiet(OptLevel::O2));
  const Tensor& weight = training.net->first->weight;
  torch::jit::Module script("Script");
  script.register_parameter("weight", weight, /*is_buffer=*/false);
  std::stringstream file;
  script.save(file);
  EXPECT_TRUE(script.attr("weight").toTensor().is_same(weight));
  EXPECT_EQ(torch::jit::load(file).attr("weight").toTensor().scalar_type(), at::kHalf);
}

TEST_P(SerializeTest, AModelAndAnOptimizerNameTheirInitialize) {
  Training one(device(), quiet(OptLevel::O2)), other(device(), quiet(OptLevel::O2), 3);
  one.step();
  save(one.amped.model, one.optimizer(), file_.path());
  load(other.amped.model, other.optimizer(), file_.path());
  EXPECT_TRUE(same_bits(other.net->parameters(), one.net->parameters()));
  EXPECT_EQ(message_of([&] { save(one.amped.model, other.optimizer(), file_.path()); }),
            "save: expected models and optimizers of one initialize, got those of two");
  EXPECT_EQ(message_of([&] { load(one.amped.model, other.optimizer(), file_.path()); }),
            "load: expected models and optimizers of one initialize, got those of two");
}

TEST_P(SerializeTest, ListsOfModelsAndOptimizersNameTheirInitialize) {
  Pair one(device(), 1), other(device(), 3);
  one.step(make_batch(device()));
  save(one.many.models, one.many.optimizers, file_.path());
  load(other.many.models, other.many.optimizers, file_.path());
  EXPECT_TRUE(same_bits(other.right->parameters(), one.right->parameters()));
  using Models = std::vector<Model<Net>>;
  const Models of_both{std::get<0>(one.many.models), std::get<0>(other.many.models)};
  EXPECT_EQ(message_of([&] { save(of_both, one.many.optimizers, file_.path()); }),
            "save: expected models and optimizers of one initialize, got those of two");
  EXPECT_EQ(message_of([&] { load(Models(), one.many.optimizers, file_.path()); }),
            "load: expected at least one model, got none");
}

TEST_P(SerializeTest, WhereTheSecondOptimizerIsRefusedTheFirstIsPutBack) {
  const Batch batch = make_batch(device());
  Net left = make_net(device()), right = make_net(device());
  torch::optim::SGD of_left(left->parameters(), 0.7), of_right(right->parameters(), 0.7);
  auto many = initialize(std::make_tuple(left, right), OptimizerRefs{of_left, of_right},
                         quiet(OptLevel::O2).num_losses(2));
  save(*std::get<0>(many.models).amp(), file_.path());
  Pair pair(device(), 1), same(device(), 1);
  const std::string message = message_of([&] { load(pair.amp(), file_.path()); });
  EXPECT_TRUE(contains(
      message, "amp::load: expected optimizers[1] of the checkpoint to be of kind Adam, got SGD"))
      << message;
  for (Pair* each : {&pair, &same}) each->step(batch);
  EXPECT_TRUE(same_bits(pair.left->parameters(), same.left->parameters()));
  EXPECT_TRUE(same_bits(pair.right->parameters(), same.right->parameters()));
}

/// LibTorch replaces the memory of the float16 parameters by the archive's float32 memory.
TEST_P(SerializeTest, TorchLoadIntoAnInitializedNetIsRefused) {
  Net trained = make_net(device(), 3);
  torch::save(trained, file_.path());
  Training training(device(), quiet(OptLevel::O2));
  const auto held = training.optimizer().master_params(), masters = clones(held);
  torch::load(training.net, file_.path(), device());
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { training.loss(); }, [&] { training.optimizer().step(); },
           [&] { save(training.amped, file_.path()); }}) {
    const std::string message = message_of(use);
    EXPECT_TRUE(contains(message, "to hold Half as initialize left it, got Float")) << message;
    EXPECT_TRUE(contains(message,
                         "load checkpoints by amp's load, or into the model that "
                         "initialize returned"))
        << message;
  }
  EXPECT_TRUE(same_bits(held, masters));
}

TORCHAMP_ON_EACH_DEVICE(SerializeTest);

}  // namespace
}  // namespace torchamp
