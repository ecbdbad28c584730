// An optimizer in a checkpoint: its kind, and what Python's optimizer.state_dict() holds.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "checkpoint/tree.h"

namespace torchamp::checkpoint {

/// {"kind", "param_groups", "state"}. The kind is that of torch's optimizer of the same algorithm.
/// `name`: for messages. Throws for optimizers without a counterpart in Python.
Tree saved_optimizer(const torch::optim::Optimizer& optimizer, const std::string& name);

/// A file's entries for an optimizer, checked to fit it.
class LoadedOptimizer {
 public:
  /// Throws, and changes nothing, if kind, groups or sizes are not the optimizer's.
  LoadedOptimizer(torch::optim::Optimizer& optimizer, const Tree& saved, const std::string& name);

  void apply();

 private:
  void read_group(const Tree& saved, const torch::optim::OptimizerParamGroup& group,
                  const Tree& states, const std::string& name);

  torch::optim::Optimizer& optimizer_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;    ///< one per group
  std::vector<std::unique_ptr<torch::optim::OptimizerParamState>> states_;  ///< one per parameter
};

}  // namespace torchamp::checkpoint
