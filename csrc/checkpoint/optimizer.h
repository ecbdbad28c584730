// An optimizer in a checkpoint: its kind, and what Python's optimizer.state_dict() holds.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "checkpoint/tree.h"

namespace torchamp::checkpoint {

/// {"kind", "param_groups", "state"}. The kind is that of torch's optimizer of the same algorithm.
/// `name` is what messages call it. Throws for optimizers that Python has no counterpart of.
Tree saved_optimizer(const torch::optim::Optimizer& optimizer, const std::string& name);

/// What a file says of an optimizer, and fits it.
class LoadedOptimizer {
 public:
  /// Throws, and changes nothing, where kind, groups or sizes are not the optimizer's.
  LoadedOptimizer(torch::optim::Optimizer& optimizer, const Tree& saved, const std::string& name);

  void apply();

 private:
  void read_group(const Tree& saved, const torch::optim::OptimizerParamGroup& group,
                  const Tree& states, const std::string& name);

  torch::optim::Optimizer& optimizer_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;    ///< one a group
  std::vector<std::unique_ptr<torch::optim::OptimizerParamState>> states_;  ///< one a parameter
};

}  // namespace torchamp::checkpoint
