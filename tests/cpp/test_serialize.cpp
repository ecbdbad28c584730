#include <torch/serialize.h>
#include <torchamp/serialize.h>

#include <filesystem>
#include <functional>

#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

/// A file that is gone at the end.
class File {
 public:
  File() : path_(::testing::TempDir() + "torchamp_checkpoint_" + std::to_string(next_++)) {}
  ~File() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  static inline int next_ = 0;
  std::string path_;
};

/// Everything that training goes on from, to see that nothing changed.
struct Snapshot {
  explicit Snapshot(Training& training)
      : tensors(clones(training.net->parameters())), scale(training.scaler().state()) {
    for (const Tensor& master : training.optimizer().master_params()) add(master);
    for (const Tensor& buffer : training.net->buffers()) add(buffer);
    if (!training.sgd.state().empty()) {
      for (const Tensor& momentum : training.momenta()) add(momentum);
    }
  }
  void add(const Tensor& tensor) { tensors.push_back(tensor.detach().clone()); }

  std::vector<Tensor> tensors;
  LossScalerState scale;
};

void expect_same(Training& training, const Snapshot& snapshot) {
  const Snapshot now(training);
  EXPECT_TRUE(same_bits(now.tensors, snapshot.tensors));
  EXPECT_EQ(now.scale.loss_scale, snapshot.scale.loss_scale);
  EXPECT_EQ(now.scale.growth_tracker, snapshot.scale.growth_tracker);
  EXPECT_EQ(now.scale.hysteresis_tracker, snapshot.scale.hysteresis_tracker);
}

class ResumeTest : public LevelTest {
 protected:
  static Training make(uint64_t seed) { return {device(), quiet(level()), seed}; }
};

TEST_P(ResumeTest, ALoadedRunIsBitForBitTheRunThatNeverStopped) {
  const File file;
  Training whole = make(1);
  for (int step = 0; step < 3; ++step) whole.step();
  if (default_properties(level()).loss_scale.dynamic()) whole.overflow();
  save(whole.amped, file.path());
  Training resumed = make(2);
  load(resumed.amped, file.path());
  expect_same(resumed, Snapshot(whole));
  for (int step = 0; step < 3; ++step) {
    whole.step();
    resumed.step();
  }
  expect_same(resumed, Snapshot(whole));
}

TEST_P(ResumeTest, LoadingTheStartForgetsTheMomentum) {
  const File file;
  Training fresh = make(1), resumed = make(2);
  save(fresh.amped, file.path());
  resumed.step();
  load(resumed.amped, file.path());
  EXPECT_TRUE(resumed.sgd.state().empty());
  fresh.step();
  resumed.step();
  expect_same(resumed, Snapshot(fresh));
}

TEST_P(ResumeTest, AFileHoldsTheModelInFloat32) {
  const File file;
  Training training = make(1);
  save(training.amped, file.path());
  torch::serialize::InputArchive archive, model;
  archive.load_from(file.path());
  archive.read("model0", model);
  Tensor weight;
  model.read("first.weight", weight);
  EXPECT_TRUE(same_bits(weight, training.optimizer().master_params()[0].to(at::kFloat)));
}

TEST_P(ResumeTest, SavingChangesNothing) {
  const File file;
  Training training = make(1);
  training.step();
  const Snapshot before(training);
  save(training.amped, file.path());
  expect_same(training, before);
}

TORCHAMP_AT_LEVELS(ResumeTest, OptLevel::O0, OptLevel::O1, OptLevel::O2, OptLevel::O3, OptLevel::O4,
                   OptLevel::O5);

class SerializeTest : public DeviceTest {
 protected:
  static Training train_at(OptLevel level, int64_t num_losses = 1) {
    return {device(), quiet(level).num_losses(num_losses)};
  }
  /// Loading `file` into a run of O2 fails with a message that has `message` in it, and changes
  /// nothing.
  static void expect_refused(const std::string& path, const std::string& message) {
    Training training = train_at(OptLevel::O2);
    training.step();
    const Snapshot before(training);
    const std::string got = message_of([&] { load(training.amped, path); });
    EXPECT_TRUE(contains(got, message)) << got;
    expect_same(training, before);
    training.step();
  }

  File file_;
};

TEST_P(SerializeTest, AnotherLevelIsRefused) {
  Training training = train_at(OptLevel::O5);
  save(training.amped, file_.path());
  expect_refused(file_.path(),
                 "amp::load: expected a checkpoint of opt_level O2, got one of O5; initialize at "
                 "O5 to load it");
}

TEST_P(SerializeTest, AnotherNumberOfLossesIsRefused) {
  Training training = train_at(OptLevel::O2, 3);
  save(training.amped, file_.path());
  expect_refused(file_.path(), "amp::load: expected a checkpoint of 1 losses, got one of 3");
}

TEST_P(SerializeTest, AnotherNumberOfOptimizersIsRefused) {
  Net net = make_net(device());
  torch::optim::SGD one(net->first->parameters(), 0.1), other(net->last->parameters(), 0.1);
  auto many = initialize(std::make_tuple(net), OptimizerRefs{one, other}, quiet(OptLevel::O2));
  save(*std::get<0>(many.models).amp(), file_.path());
  expect_refused(file_.path(), "amp::load: expected a checkpoint of 1 optimizers, got one of 2");
}

TEST_P(SerializeTest, AnOptimizerOfAnotherKindIsRefused) {
  Net net = make_net(device());
  torch::optim::Adam adam(net->parameters(), 0.1);
  auto amped = initialize(net, adam, quiet(OptLevel::O2));
  save(amped, file_.path());
  expect_refused(
      file_.path(),
      "amp::load: expected optimizer 0 of the checkpoint to have the kind and the groups "
      "of the one here, got: ");
}

TEST_P(SerializeTest, OtherGroupsAreRefused) {
  Net net = make_net(device());
  torch::optim::SGD sgd(net->first->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto amped = initialize(net, sgd, quiet(OptLevel::O2));
  save(amped, file_.path());
  expect_refused(file_.path(), "a parameter group that has a different size");
}

struct WiderImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return first(x); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(4, 17))};
};

TEST_P(SerializeTest, AModelOfOtherSizesIsRefused) {
  const auto wider = std::make_shared<WiderImpl>();
  wider->to(device());
  torch::optim::SGD sgd(wider->parameters(), 0.1);
  auto amped = initialize(wider, sgd, quiet(OptLevel::O2));
  save(amped, file_.path());
  expect_refused(file_.path(),
                 "amp::load: expected \"first.weight\" to have sizes [16, 4], got [17, 4]");
}

TEST_P(SerializeTest, AModelWithOtherNamesIsRefused) {
  torch::nn::Linear linear(4, 2);
  linear->to(device());
  torch::optim::SGD sgd(linear->parameters(), 0.1);
  auto amped = initialize(linear, sgd, quiet(OptLevel::O2));
  save(amped, file_.path());
  expect_refused(file_.path(),
                 "amp::load: expected the checkpoint to hold \"first.weight\", got "
                 "none: the file is damaged or was not written by amp::save");
}

TEST_P(SerializeTest, AFileThatIsCutOffAnywhereIsRefused) {
  Training training = train_at(OptLevel::O2);
  save(training.amped, file_.path());
  const auto size = std::filesystem::file_size(file_.path());
  for (const double part : {0.999, 0.9, 0.5, 0.1, 0.0}) {
    std::filesystem::resize_file(file_.path(), static_cast<uintmax_t>(part * size));
    expect_refused(file_.path(), "amp::load: expected \"" + file_.path() +
                                     "\" to be a file that amp::save wrote, got one that cannot be "
                                     "read: ");
  }
}

TEST_P(SerializeTest, AFileThatIsNotThereIsRefused) {
  expect_refused("/nowhere/at/all",
                 "amp::load: expected \"/nowhere/at/all\" to be a file that "
                 "amp::save wrote, got one that cannot be read: ");
}

TEST_P(SerializeTest, ATorchCheckpointIsRefused) {
  Net net = make_net(device());
  torch::save(net, file_.path());
  expect_refused(file_.path(), "amp::load: expected the checkpoint to hold \"format\", got none");
}

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
  save(whole.amp(), file_.path());
  load(resumed.amp(), file_.path());
  whole.step(batch);
  resumed.step(batch);
  EXPECT_TRUE(same_bits(resumed.left->parameters(), whole.left->parameters()));
  EXPECT_TRUE(same_bits(resumed.right->parameters(), whole.right->parameters()));
  EXPECT_EQ(resumed.amp().loss_scaler(0).loss_scale(), 65536);
  EXPECT_EQ(resumed.amp().loss_scaler(1).loss_scale(), 512);
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
  EXPECT_TRUE(contains(message, "amp::load: expected optimizer 1 of the checkpoint")) << message;
  for (Pair* each : {&pair, &same}) each->step(batch);
  EXPECT_TRUE(same_bits(pair.left->parameters(), same.left->parameters()));
  EXPECT_TRUE(same_bits(pair.right->parameters(), same.right->parameters()));
}

/// LibTorch swaps the memory under the float16 parameters for the archive's float32 memory.
TEST_P(SerializeTest, TorchLoadIntoAnInitializedNetIsRefused) {
  Net trained = make_net(device(), 3);
  torch::save(trained, file_.path());
  Training training = train_at(OptLevel::O2);
  const auto masters = clones(training.optimizer().master_params());
  torch::load(training.net, file_.path(), device());
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { training.loss(); }, [&] { training.optimizer().step(); },
           [&] { save(training.amped, file_.path()); }}) {
    const std::string message = message_of(use);
    EXPECT_TRUE(contains(message, "to hold Half as initialize left it, got Float")) << message;
    EXPECT_TRUE(contains(message, "load checkpoints with amp::load")) << message;
  }
  EXPECT_TRUE(same_bits(training.optimizer().master_params()[0], masters[0]));
}

TORCHAMP_ON_EACH_DEVICE(SerializeTest);

}  // namespace
}  // namespace torchamp
