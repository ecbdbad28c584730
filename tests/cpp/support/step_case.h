// Calls of fused_step, and their comparison with the oracle.
#pragma once

#include "lists.h"
#include "step_oracle.h"

namespace torchamp {

/// One call's arguments. Position i belongs to group i % groups.size().
struct StepCase {
  StepAlgorithm algorithm;
  std::vector<oracle::StepOptions> groups;
  Lists all;  ///< grads, params, the states, model_params
  StepScalars scalars;
  std::vector<int64_t> unscaled = {};

  const std::vector<at::Tensor>& grads() const { return all.lists[0]; }
  const std::vector<at::Tensor>& params() const { return all.lists[1]; }
  const std::vector<at::Tensor>& models() const { return all.lists.back(); }
  /// All first states, then all second states, …
  std::vector<at::Tensor> states() const;
  /// Everything that a step may write, except undefined tensors.
  std::vector<at::Tensor> written() const;
  const oracle::StepOptions& options(size_t i) const { return groups[i % groups.size()]; }
};

/// Includes the norms that the algorithm reads, and tensors with step counts 0, 1 and 999. `all`
/// has the number of lists that the algorithm takes.
StepCase make_case(StepAlgorithm algorithm, std::vector<oracle::StepOptions> groups, Lists all,
                   at::Device device);

/// Lists for an algorithm's call, with random mixes of dtypes and layouts.
Lists step_lists(StepAlgorithm algorithm, int64_t positions, at::Device device);

/// Another batch's grads in the same memory.
void renew_grads(const StepCase& call, unsigned seed);

void run(const StepCase& call);

StepCase copy_of(const StepCase& call);

/// Whether position i is stepped: not empty, and undefined at most in the last list.
bool has_work(const Lists& all, size_t i);

/// `after` is the oracle's result for `before`, up to the rounding of each tensor's dtype.
void expect_stepped(const StepCase& before, const StepCase& after);

/// Equal bit for bit.
void expect_untouched(const StepCase& before, const StepCase& after);

}  // namespace torchamp
