// The optimizers that both languages have, each with its checkpoint entries under Python's names.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/field.h"

namespace torchamp::checkpoint {

/// An option that Python's optimizer has and LibTorch's lacks, at the value with which both are
/// equal.
struct FixedOption {
  const char* name;
  bool value;
};

/// A parameter whose state is loaded.
struct StateOwner {
  const at::Tensor& param;                        ///< or its master, which has the state's dtype
  const torch::optim::OptimizerOptions& options;  ///< of its group, as loaded
  const torch::optim::OptimizerParamState* old_state;  ///< before loading; may be null
};

class Kind {
 public:
  virtual ~Kind() = default;

  /// The name of torch's optimizer of the algorithm: "Adam" for FusedAdam.
  virtual std::string name(const torch::optim::Optimizer& optimizer) const = 0;
  virtual std::vector<Field> fields(torch::optim::OptimizerOptions& options) const = 0;
  virtual std::vector<FixedOption> fixed_options() const { return {}; }
  /// Throws for options out of their range.
  virtual void check(const torch::optim::OptimizerOptions&) const {}

  virtual Tree saved(const torch::optim::OptimizerParamState& state) const = 0;
  /// The state of the owner that `saved` holds; `what` is its name. Throws if it does not fit.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> read_state(
      const Tree& saved, const StateOwner& owner, const std::string& what) const = 0;
  /// The sum of the counts of steps in the optimizer's states; empty if they have none.
  virtual std::optional<int64_t> count_of_steps(torch::optim::Optimizer&) const { return {}; }
  /// Makes the state's 16-bit tensors float32.
  virtual void widen(torch::optim::OptimizerParamState&) const {}
  /// Makes the next step read the changed `optimizer.state()`.
  virtual void states_were_set(torch::optim::Optimizer&) const {}
};

/// Null for an unsupported optimizer.
const Kind* kind_of(const torch::optim::Optimizer& optimizer);

}  // namespace torchamp::checkpoint
