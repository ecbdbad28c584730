// Helpers for tests of checkpoints.
#pragma once

#include <torch/serialize.h>
#include <torchamp/serialize.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "checkpoint/file.h"
#include "training.h"

namespace torchamp {

using at::Tensor;

/// A temporary file, removed by the destructor.
class File {
 public:
  File()
      : path_(::testing::TempDir() + "torchamp_checkpoint_" + std::to_string(getpid()) + "_" +
              std::to_string(next_++)) {}
  ~File() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  static inline int next_ = 0;
  std::string path_;
};

/// Copies of all training state, to check that nothing changed.
struct Snapshot {
  explicit Snapshot(Training& training)
      : tensors(clones(training.net->parameters())), scale(training.scaler().state()) {
    for (const Tensor& master : training.optimizer().master_params()) add(master);
    for (const Tensor& buffer : training.net->buffers()) add(buffer);
    if (!training.own.state().empty()) {
      for (const Tensor& momentum : training.momenta()) add(momentum);
    }
  }
  void add(const Tensor& tensor) { tensors.push_back(tensor.detach().clone()); }

  std::vector<Tensor> tensors;
  ScaleState scale;
};

inline void expect_same(Training& training, const Snapshot& snapshot) {
  const Snapshot now(training);
  EXPECT_TRUE(same_bits(now.tensors, snapshot.tensors));
  EXPECT_EQ(now.scale.loss_scale, snapshot.scale.loss_scale);
  EXPECT_EQ(now.scale.growth_tracker, snapshot.scale.growth_tracker);
}

/// The contents of a file, read with LibTorch alone.
inline checkpoint::Tree entries_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  return torch::pickle_load(bytes).toGenericDict();
}

/// The only element of a list in the file.
inline checkpoint::Tree only(const checkpoint::Tree& tree, const char* list) {
  return tree.at(list).toList().get(0).toGenericDict();
}

}  // namespace torchamp
