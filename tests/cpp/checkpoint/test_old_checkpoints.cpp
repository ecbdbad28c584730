// What torchamp of commit 885942b saved, in either language, loads bit for bit, and the run goes on
// as it did then. tests/old_checkpoints/make.py wrote the files.
#include <ATen/ops/scalar_tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoints.h"
#include "old_run.h"

namespace torchamp {
namespace {

using Leaves = std::map<std::string, Tensor>;

/// Adds the tensors and numbers of a tree by path, such as "0.loss_scale".
void add_leaves(const c10::IValue& value, const std::string& path, Leaves& leaves) {
  if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      const c10::IValue& key = entry.key();
      const std::string name = key.isInt() ? std::to_string(key.toInt()) : key.toStringRef();
      add_leaves(entry.value(), path + "." + name, leaves);
    }
  } else if (value.isList()) {
    for (const auto& each : value.toListRef()) add_leaves(each, path + ".", leaves);
  } else {
    leaves[path] =
        value.isTensor() ? value.toTensor() : at::scalar_tensor(value.toScalar(), at::kDouble);
  }
}

/// All of a checkpoint of one model and optimizer but its level, the options and the extra.
Leaves state_in(const std::string& path) {
  const checkpoint::Tree checkpoint = entries_of(path);
  Leaves leaves;
  add_leaves(checkpoint.at("models"), "models", leaves);
  add_leaves(only(checkpoint, "optimizers").at("state"), "state", leaves);
  add_leaves(checkpoint.at("loss_scalers"), "loss_scalers", leaves);
  leaves.erase("loss_scalers..hysteresis_tracker");  // that commit's alone
  return leaves;
}

void expect_same(const Leaves& got, const Leaves& expected) {
  for (const auto& [path, tensor] : got) EXPECT_EQ(expected.count(path), 1U) << path;
  for (const auto& [path, tensor] : expected) {
    ASSERT_EQ(got.count(path), 1U) << path;
    EXPECT_TRUE(same_bits(got.at(path), tensor)) << path;
  }
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, maker] : old_run::makers()) all.push_back(name);
  return all;
}

/// Language, level and optimizer.
using Case = std::tuple<std::string, std::string, std::string>;

class OldCheckpointTest : public testing::TestWithParam<Case> {
 protected:
  static std::string path() {
    const auto& [language, level, name] = GetParam();
    const std::filesystem::path all = TORCHAMP_OLD_CHECKPOINTS;
    return all / "885942b" / language / (level + "_" + name + ".pt");
  }
  /// The optimizer is made with another learning rate than the file's.
  static old_run::Run make() { return {std::get<1>(GetParam()), std::get<2>(GetParam()), 1.0}; }
};

TEST_P(OldCheckpointTest, ItsState) {
  old_run::Run run = make();
  load(run.amped, path());
  const File file;
  save(run.amped, file.path());
  expect_same(state_in(file.path()), state_in(path()));
}

TEST_P(OldCheckpointTest, ItsRunGoesOn) {
  old_run::Run run = make();
  const Extra extra = load(run.amped, path());
  run.train(old_run::kSteps, old_run::kSteps + old_run::kFurtherSteps);
  const File file;
  save(run.amped, file.path());
  EXPECT_TRUE(same_bits(old_run::model_in(entries_of(file.path())), extra.at("after").toTensor()));
}

std::string label(const testing::TestParamInfo<Case>& info) {
  const auto& [language, level, name] = info.param;
  return language + "_" + level + "_" + name;
}

INSTANTIATE_TEST_SUITE_P(, OldCheckpointTest,
                         testing::Combine(testing::Values("python", "cpp"),
                                          testing::Values("O2", "O5"), testing::ValuesIn(names())),
                         label);

}  // namespace
}  // namespace torchamp
