#include <torch/optim/adam.h>
#include <torch/optim/serialize.h>
#include <torch/serialize/archive.h>
#include <torchamp/optim/adam.h>
#include <torchamp/optim/lamb.h>
#include <torchamp/optim/sgd.h>

#include <sstream>

#include "errors.h"
#include "fused_cases.h"

namespace torchamp {
namespace {

using at::Tensor;
using torch::optim::OptimizerParamGroup;

std::string saved(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream file;
  archive.save_to(file);
  return file.str();
}

void load(torch::optim::Optimizer& optimizer, const std::string& file) {
  torch::serialize::InputArchive archive;
  archive.load_from(file.data(), file.size());
  optimizer.load(archive);
}

class FusedSerializeTest : public FusedCaseTest {};

TEST_P(FusedSerializeTest, AResumedRunIsTheRunThatNeverStopped) {
  for (const auto dtype : {at::kFloat, at::kHalf, at::kDouble}) {
    const auto params = make_params(device(), dtype);
    const auto whole = each().ours(our_groups(each(), params));
    train(*whole, params, 3);
    const std::string file = saved(*whole);
    const auto copies = copies_of(params);
    const auto resumed = ours({copies[0], copies[1]});
    resumed->add_param_group({std::vector<Tensor>(copies.begin() + 2, copies.end())});
    load(*resumed, file);
    train(*whole, params, 3, 3);
    train(*resumed, copies, 3, 3);
    EXPECT_TRUE(same_bits(everything(*resumed, copies), everything(*whole, params)));
  }
}

TEST_P(FusedSerializeTest, SavingChangesNothing) {
  const auto params = make_params(device());
  const auto optimizer = ours(params);
  train(*optimizer, params, 2);
  const auto before = everything(*optimizer, params);
  saved(*optimizer);
  EXPECT_TRUE(same_bits(everything(*optimizer, params), before));
}

TEST_P(FusedSerializeTest, LoadingTheStartForgetsTheStates) {
  const auto params = make_params(device()), others = copies_of(params);
  const auto fresh = ours(others), stepped = ours(params);
  const std::string file = saved(*fresh);
  train(*stepped, params, 2);
  load(*stepped, file);
  EXPECT_TRUE(stepped->state().empty());
  const auto start = copies_of(params);
  const auto plain = ours(start);
  train(*stepped, params, 1);
  train(*plain, start, 1);
  EXPECT_TRUE(same_bits(everything(*stepped, params), everything(*plain, start)));
}

TORCHAMP_ON_FUSED_CASES(FusedSerializeTest, fused_cases());

class LibTorchFilesTest : public FusedCaseTest {
 protected:
  /// A run of `first` that continues as `second` stays as close to a run of `first` alone as two
  /// implementations of one algorithm do.
  static void expect_continued(torch::optim::Optimizer& first, torch::optim::Optimizer& second,
                               const std::vector<Tensor>& params,
                               const std::vector<Tensor>& others) {
    train(first, params, 4);
    load(second, saved(first));
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < params.size(); ++i) Tensor(others[i]).copy_(params[i]);
    train(first, params, 3, 4);
    train(second, others, 3, 4);
    EXPECT_LE(distance(others, params), 2e-6);
  }
};

TEST_P(LibTorchFilesTest, AreRead) {
  const auto params = make_params(device()), others = copies_of(params);
  const auto theirs = each().theirs(their_groups(each(), params));
  expect_continued(*theirs, *each().ours(our_groups(each(), others)), params, others);
}

TEST_P(LibTorchFilesTest, AreWritten) {
  const auto params = make_params(device()), others = copies_of(params);
  const auto ours = each().ours(our_groups(each(), params));
  expect_continued(*ours, *each().theirs(their_groups(each(), others)), params, others);
}

/// LibTorch's moments have the parameters' dtype.
TEST_P(LibTorchFilesTest, StatesOfLowPrecisionAreWidened) {
  const auto params = make_params(device(), at::kBFloat16), others = copies_of(params);
  const auto theirs = each().theirs(their_groups(each(), params));
  train(*theirs, params, 1);
  const auto ours = each().ours(our_groups(each(), others));
  load(*ours, saved(*theirs));
  train(*ours, others, 1, 1);
  if (const auto* state = state_of(*ours, others[1])) {
    for (const auto& [name, tensor] : state->tensors()) {
      EXPECT_EQ(tensor.scalar_type(), at::kFloat) << name;
    }
  }
}

TORCHAMP_ON_FUSED_CASES(LibTorchFilesTest, paired_cases());

class WrongFileTest : public DeviceTest {
 protected:
  WrongFileTest() { train(adam_, params_, 1); }

  /// Loading it into an Adam of one group fails and changes nothing.
  std::string message_of_loading(const std::string& file) {
    const auto before = everything(adam_, params_);
    const auto row = options().hyper();
    const std::string message = message_of<c10::ValueError>([&] { load(adam_, file); });
    EXPECT_TRUE(same_bits(everything(adam_, params_), before));
    EXPECT_EQ(options().hyper(), row);
    train(adam_, params_, 1, 1);
    EXPECT_EQ(state_of(adam_, params_[0])->get("step").item<int64_t>(), 2);
    return message;
  }
  const optim::FusedAdamOptions& options() {
    return static_cast<optim::FusedAdamOptions&>(adam_.param_groups()[0].options());
  }

  std::vector<Tensor> params_ = make_params(device());
  std::vector<Tensor> others_ = make_params(device());
  optim::FusedAdam adam_{params_, 0.1};
};

TEST_P(WrongFileTest, OfAnotherKindOfOptimizer) {
  EXPECT_EQ(message_of_loading(saved(optim::FusedSGD(others_, 0.1))),
            "FusedAdam: expected the file's options to contain \"betas\", but it is missing: "
            "another kind of optimizer wrote it");
}

TEST_P(WrongFileTest, OfALamb) {
  EXPECT_EQ(message_of_loading(saved(optim::FusedLAMB(others_))),
            "FusedAdam: expected the file's options to contain \"amsgrad\", but it is missing: "
            "another kind of optimizer wrote it");
}

TEST_P(WrongFileTest, OfAdamWithAmsGrad) {
  const auto with = torch::optim::AdamOptions().amsgrad(true);
  EXPECT_EQ(message_of_loading(saved(torch::optim::Adam(others_, with))),
            "FusedAdam: expected amsgrad to be false, got true; torch::optim::Adam and AdamW have "
            "it");
}

TEST_P(WrongFileTest, OfMoreGroups) {
  optim::FusedAdam other(Groups{OptimizerParamGroup({others_[0]}), OptimizerParamGroup({})});
  EXPECT_EQ(message_of_loading(saved(other)),
            "FusedAdam: expected a file of 1 param_groups, got 2");
}

TEST_P(WrongFileTest, OfFewerParams) {
  EXPECT_EQ(message_of_loading(saved(optim::FusedAdam({others_[0]}))),
            "FusedAdam: expected a file of 6 params in a group, got 1");
}

TEST_P(WrongFileTest, OfOtherSizes) {
  std::swap(others_[0], others_[1]);
  optim::FusedAdam other(others_);
  train(other, others_, 1);
  EXPECT_EQ(message_of_loading(saved(other)),
            "FusedAdam: expected the file's \"exp_avg\" to have the sizes of its parameter, [3], "
            "got [17, 33]");
}

TEST_P(WrongFileTest, OfOptionsOutOfRange) {
  optim::FusedAdam other(others_);
  other.param_groups()[0].options().set_lr(-1.0);
  EXPECT_EQ(message_of_loading(saved(other)), "FusedAdam: expected lr to be at least 0, got -1");
}

TEST_P(WrongFileTest, OfNoOptimizer) {
  torch::serialize::OutputArchive archive;
  archive.write("weight", params_[0]);
  std::ostringstream file;
  archive.save_to(file);
  EXPECT_EQ(message_of_loading(file.str()),
            "FusedAdam: expected the file to contain \"state\", but it is missing: the file "
            "is damaged, or not an optimizer's");
}

TORCHAMP_ON_EACH_DEVICE(WrongFileTest);

}  // namespace
}  // namespace torchamp
