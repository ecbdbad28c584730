#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/lbfgs.h>

#include <functional>
#include <random>

#include "checkpoints.h"
#include "errors.h"

namespace torchamp {
namespace {

class CheckpointFileTest : public DeviceTest {
 protected:
  static Training train_at(OptLevel level, int64_t num_losses = 1) {
    return {device(), quiet(level).num_losses(num_losses)};
  }
  /// Loading `file` into a run at O2 fails with an error that contains `message`, and changes
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

TEST_P(CheckpointFileTest, AnotherLevelIsRefused) {
  Training training = train_at(OptLevel::O5);
  save(training.amped, file_.path());
  expect_refused(file_.path(),
                 "amp::load: expected a checkpoint of opt_level O2, got one of O5; initialize at "
                 "O5 to load it");
}

TEST_P(CheckpointFileTest, AnotherNumberOfLossesIsRefused) {
  Training training = train_at(OptLevel::O2, 3);
  save(training.amped, file_.path());
  expect_refused(file_.path(), "amp::load: expected a checkpoint of 1 losses, got one of 3");
}

TEST_P(CheckpointFileTest, AnotherNumberOfOptimizersIsRefused) {
  Net net = make_net(device());
  torch::optim::SGD one(net->first->parameters(), 0.1), other(net->last->parameters(), 0.1);
  auto many = initialize(std::make_tuple(net), OptimizerRefs{one, other}, quiet(OptLevel::O2));
  save(*std::get<0>(many.models).amp(), file_.path());
  expect_refused(file_.path(), "amp::load: expected a checkpoint of 1 optimizers, got one of 2");
}

TEST_P(CheckpointFileTest, AnOptimizerOfAnotherKindIsRefused) {
  Net net = make_net(device());
  torch::optim::Adam adam(net->parameters(), 0.1);
  auto amped = initialize(net, adam, quiet(OptLevel::O2));
  save(amped, file_.path());
  expect_refused(file_.path(),
                 "amp::load: expected optimizers[0] of the checkpoint to be of kind SGD, got Adam");
}

TEST_P(CheckpointFileTest, OtherGroupsAreRefused) {
  Net net = make_net(device());
  torch::optim::SGD sgd(net->first->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto amped = initialize(net, sgd, quiet(OptLevel::O2));
  save(amped, file_.path());
  expect_refused(file_.path(),
                 "amp::load: expected optimizers[0].param_groups[0] of the checkpoint to have 6 "
                 "params, got 2");
}

struct WiderImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return first(x); }
  torch::nn::Linear first{register_module("first", torch::nn::Linear(4, 17))};
};

TEST_P(CheckpointFileTest, AModelOfOtherSizesIsRefused) {
  const auto wider = std::make_shared<WiderImpl>();
  wider->to(device());
  torch::optim::SGD sgd(wider->parameters(), 0.1);
  auto amped = initialize(wider, sgd, quiet(OptLevel::O2));
  save(amped, file_.path());
  expect_refused(
      file_.path(),
      "amp::load: expected models[0] of the checkpoint to have the names, sizes and types of "
      "the model here, got \"first.weight\" with sizes [17, 4], expected [16, 4], "
      "\"first.bias\" with sizes [17], expected [16], missing key \"last.weight\"");
}

TEST_P(CheckpointFileTest, AModelWithOtherNamesIsRefused) {
  torch::nn::Linear linear(4, 2);
  linear->to(device());
  torch::optim::SGD sgd(linear->parameters(), 0.1);
  auto amped = initialize(linear, sgd, quiet(OptLevel::O2));
  save(amped, file_.path());
  expect_refused(file_.path(),
                 "missing key \"norm.num_batches_tracked\", unexpected key \"weight\", "
                 "unexpected key \"bias\"");
}

TEST_P(CheckpointFileTest, ATensorOfTwoNamesIsWrittenOnce) {
  torch::nn::Linear shared(100, 100);
  torch::nn::Sequential net(shared, shared);
  net->to(device());
  torch::optim::SGD sgd(shared->parameters(), 0.1);
  auto amped = initialize(net, sgd, quiet(OptLevel::O2));
  save(amped, file_.path());
  EXPECT_LT(std::filesystem::file_size(file_.path()), 2 * shared->weight.numel() * sizeof(float));
}

TEST_P(CheckpointFileTest, AFileThatIsCutOffAnywhereIsRefused) {
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

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Whether `bytes`, written to a file, are refused by an error that changes nothing, or load as
/// what `saved` holds.
void expect_refused_or(const Snapshot& saved, const std::string& path, const std::string& bytes,
                       Training& training, const Snapshot& before) {
  std::ofstream(path, std::ios::binary) << bytes;
  const std::string message = message_of([&] { load(training.amped, path); });
  if (message == "no error") {
    expect_same(training, saved);
    return;
  }
  EXPECT_EQ(message.find("amp::load: expected "), 0u) << message;
  expect_same(training, before);
}

TEST_P(CheckpointFileTest, FlippedBitsAreRefusedOrHarmless) {
  Training one = train_at(OptLevel::O2);
  one.step();
  save(one.amped, file_.path());
  const std::string bytes = bytes_of(file_.path());
  const Snapshot saved(one);
  std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<size_t> any_bit(0, 8 * bytes.size() - 1);
  std::vector<size_t> bits;
  for (int i = 0; i < 100; ++i) bits.push_back(any_bit(random));
  // The lengths in a record's header, by which another record of the same size may be found.
  for (auto at = bytes.find("PK\x03\x04"); at != std::string::npos;
       at = bytes.find("PK\x03\x04", at + 1)) {
    for (size_t bit = 0; bit < 32; ++bit) bits.push_back(8 * (at + 26) + bit);
  }
  Training other = train_at(OptLevel::O2);
  for (const size_t bit : bits) {
    SCOPED_TRACE(bit);
    other.step();
    std::string flipped = bytes;
    flipped[bit / 8] ^= static_cast<char>(1 << bit % 8);
    expect_refused_or(saved, file_.path(), flipped, other, Snapshot(other));
  }
}

TEST_P(CheckpointFileTest, AFileThatIsNotThereIsRefused) {
  expect_refused("/nowhere/at/all",
                 "amp::load: expected \"/nowhere/at/all\" to be a file that "
                 "amp::save wrote, got one that cannot be opened");
}

TEST_P(CheckpointFileTest, ATorchCheckpointIsRefused) {
  Net net = make_net(device());
  torch::save(net, file_.path());
  expect_refused(file_.path(),
                 "got one that cannot be read: it is one of LibTorch's own archives, which "
                 "torch::load reads");
}

TEST_P(CheckpointFileTest, AnArchiveOfSomethingElseIsRefused) {
  Training training = train_at(OptLevel::O2);
  torch::serialize::InputArchive archive;
  torch::save(make_net(device()), file_.path());
  archive.load_from(file_.path());
  EXPECT_EQ(
      message_of([&] { load(training.amped, archive); }),
      "amp::load: expected the archive to contain \"torchamp\", but it is missing: the archive "
      "is damaged or was not written by amp::save");
}

/// Writes a modified checkpoint of O2.
void write_changed(const std::string& path, at::Device device,
                   const std::function<void(checkpoint::Tree&)>& change) {
  Training training(device, quiet(OptLevel::O2));
  training.step();
  save(training.amped, path);
  checkpoint::Tree tree = entries_of(path);
  change(tree);
  std::ofstream file(path, std::ios::binary);
  checkpoint::write_file(tree, file);
}

TEST_P(CheckpointFileTest, AFormatToComeIsRefused) {
  write_changed(file_.path(), device(), [](auto& tree) { tree.insert_or_assign("torchamp", 2); });
  expect_refused(file_.path(),
                 "amp::load: expected a checkpoint of format 1, got 2, written by another version "
                 "of torchamp");
}

TEST_P(CheckpointFileTest, AMissingEntryIsRefused) {
  write_changed(file_.path(), device(), [](auto& tree) {
    EXPECT_EQ(only(tree, "loss_scalers").erase("growth_tracker"), 1u);
  });
  expect_refused(
      file_.path(),
      "amp::load: expected the checkpoint to contain \"growth_tracker\", but it is missing: the "
      "file is damaged or was not written by amp::save");
}

TEST_P(CheckpointFileTest, AnEntryOfAnotherTypeIsRefused) {
  write_changed(file_.path(), device(), [](auto& tree) {
    only(only(tree, "optimizers"), "param_groups").insert_or_assign("lr", "fast");
  });
  expect_refused(
      file_.path(),
      "amp::load: expected \"optimizers[0].param_groups[0].lr\" of the checkpoint to be a "
      "number, got String");
}

using Entry = c10::IValue;

/// Loading a checkpoint in which `change` was made to an entry is refused and changes nothing.
void expect_refused_with(const std::string& path, at::Device device,
                         const std::function<void(checkpoint::Tree&)>& change) {
  write_changed(path, device, change);
  Training training(device, quiet(OptLevel::O2));
  training.step();
  const Snapshot before(training);
  const std::string message = message_of([&] { load(training.amped, path); });
  EXPECT_EQ(message.find("amp::load: expected "), 0u) << message;
  expect_same(training, before);
}

TEST_P(CheckpointFileTest, WrongScalersAreRefused) {
  const std::vector<std::pair<const char*, Entry>> wrong{
      {"loss_scale", 0.0},     {"loss_scale", -1.0},       {"loss_scale", 1e300},
      {"loss_scale", 1e-300},  {"loss_scale", NAN},        {"loss_scale", Entry()},
      {"growth_tracker", "x"}, {"growth_tracker", 1.5},    {"growth_tracker", 1L << 31},
      {"growth_tracker", NAN}, {"growth_tracker", Entry()}};
  for (const auto& [key, value] : wrong) {
    SCOPED_TRACE(key);
    expect_refused_with(file_.path(), device(), [&, key = key, value = value](auto& tree) {
      only(tree, "loss_scalers").insert_or_assign(key, value);
    });
  }
}

TEST_P(CheckpointFileTest, WrongWeightsAreRefused) {
  for (const Entry& value : {Entry(), Entry("x"), Entry(at::ones({16, 4}, at::kBool)),
                             Entry(at::ones({16, 4}, at::kComplexFloat))}) {
    expect_refused_with(file_.path(), device(), [&](auto& tree) {
      only(tree, "models").insert_or_assign("first.weight", value);
    });
  }
}

TEST_P(CheckpointFileTest, WrongStatesAreRefused) {
  for (const Entry& value : {Entry("x"), Entry(1.5), Entry(at::ones({16, 4}, at::kBool)),
                             Entry(at::ones({16, 4}, at::kComplexFloat))}) {
    expect_refused_with(file_.path(), device(), [&](auto& tree) {
      const auto states = only(tree, "optimizers").at("state").toGenericDict();
      states.at(0).toGenericDict().insert_or_assign("momentum_buffer", value);
    });
  }
}

TEST_P(CheckpointFileTest, WrongOptionsAreRefused) {
  for (const Entry& value : {Entry("x"), Entry(NAN), Entry(at::ones({2})), Entry()}) {
    expect_refused_with(file_.path(), device(), [&](auto& tree) {
      only(only(tree, "optimizers"), "param_groups").insert_or_assign("lr", value);
    });
  }
  expect_refused_with(file_.path(), device(), [&](auto& tree) {
    EXPECT_EQ(only(only(tree, "optimizers"), "param_groups").erase("lr"), 1u);
  });
}

TEST_P(CheckpointFileTest, AStateOfOtherSizesIsRefused) {
  write_changed(file_.path(), device(), [](auto& tree) {
    const auto states = only(tree, "optimizers").at("state").toGenericDict();
    states.at(1).toGenericDict().insert_or_assign("momentum_buffer", at::ones({3}));
  });
  expect_refused(
      file_.path(),
      "amp::load: expected \"optimizers[0].param_groups[0].params[1].momentum_buffer\" of "
      "the checkpoint to have its parameter's sizes, [16], got [3]");
}

TEST_P(CheckpointFileTest, AnOptionThatLibTorchLacksIsRefused) {
  write_changed(file_.path(), device(), [](auto& tree) {
    only(only(tree, "optimizers"), "param_groups").insert_or_assign("maximize", true);
  });
  expect_refused(file_.path(),
                 "amp::load: expected maximize of optimizers[0].param_groups[0] in the checkpoint "
                 "to be false, because LibTorch's optimizer does not support it; FusedSGD, "
                 "FusedAdam and FusedAdamW do");
}

/// The checkpoint as Python writes it after torch.serialization.set_crc32_options(False).
std::string without_checksums(std::string bytes) {
  const std::string descriptor = "PK\x07\x08";
  for (auto at = bytes.find(descriptor); at != std::string::npos;
       at = bytes.find(descriptor, at + 1)) {
    bytes.replace(at + 4, 4, 4, '\0');
  }
  return bytes;
}

TEST_P(CheckpointFileTest, AFileWithoutChecksumsIsLoaded) {
  Training one = train_at(OptLevel::O2), other = train_at(OptLevel::O2);
  one.step();
  save(one.amped, file_.path());
  const std::string bytes = without_checksums(bytes_of(file_.path()));
  std::ofstream(file_.path(), std::ios::binary) << bytes;
  load(other.amped, file_.path());
  expect_same(other, Snapshot(one));
}

/// A malicious file that would read beyond a record: it claims 127 elements in 64.
TEST_P(CheckpointFileTest, ATensorThatIsLongerThanItsRecordIsRefused) {
  Training training = train_at(OptLevel::O2);
  save(training.amped, file_.path());
  std::string bytes = without_checksums(bytes_of(file_.path()));
  const auto replace = [&](const std::string& from, const std::string& to) {
    const auto found = bytes.find(from);
    ASSERT_NE(found, std::string::npos);
    bytes.replace(found, from.size(), to);
  };
  const std::string numel = {'K', 64}, strides = {'K', 4, 'K', 1};  // of first.weight
  replace(numel, {'K', 127});
  replace(strides, {'K', 5, 'K', 1});
  std::ofstream(file_.path(), std::ios::binary) << bytes;
  expect_refused(file_.path(), "a tensor of sizes [16, 4] is longer than its record");
}

TEST_P(CheckpointFileTest, AnOptimizerThatPythonDoesNotKnowIsNotSaved) {
  Net net = make_net(device());
  torch::optim::LBFGS lbfgs(net->parameters());
  auto amped = initialize(net, lbfgs, quiet(OptLevel::O0));
  EXPECT_EQ(message_of([&] { save(amped, file_.path()); }),
            "amp::save: expected optimizers[0] to be LibTorch's SGD, Adam, AdamW, Adagrad or "
            "RMSprop, or a torchamp optimizer that Python supports, got an unsupported class");
  EXPECT_FALSE(std::filesystem::exists(file_.path()));
}

TEST_P(CheckpointFileTest, APathThatCannotBeWrittenIsRefused) {
  Training training = train_at(OptLevel::O2);
  const std::string a_folder = ::testing::TempDir();
  for (const auto& [path, got] : {std::pair(a_folder, "one that cannot be"),
                                  std::pair(std::string(), "the error \"No such file")}) {
    const std::string message = message_of([&, path = path] { save(training.amped, path); });
    EXPECT_EQ(message.find("amp::save: expected \"" + path +
                           "\" to be a path that can be written, got " + got),
              0U)
        << message;
  }
}

TORCHAMP_ON_EACH_DEVICE(CheckpointFileTest);

}  // namespace
}  // namespace torchamp
