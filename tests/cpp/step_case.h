// Calls of fused_step, and how to tell whether they did what the oracle does.
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
  /// All first states, all second ones, …
  std::vector<at::Tensor> states() const;
  /// Everything that a step may write, but for undefined tensors.
  std::vector<at::Tensor> written() const;
  const oracle::StepOptions& options(size_t i) const { return groups[i % groups.size()]; }
};

/// With the norms that the algorithm reads, and tensors that have taken 0, 1 and 999 steps. `all`
/// has as many lists as the algorithm takes.
StepCase make_case(StepAlgorithm algorithm, std::vector<oracle::StepOptions> groups, Lists all,
                   at::Device device);

/// Lists for an algorithm's call: every mix of dtypes and layouts that chance gives.
Lists step_lists(StepAlgorithm algorithm, int64_t positions, at::Device device);

/// Another batch's grads in the same memory.
void renew_grads(const StepCase& call, unsigned seed);

void run(const StepCase& call);

StepCase copy_of(const StepCase& call);

/// Whether position i is to be stepped: no list but the last has a hole there, nor is it empty.
bool has_work(const Lists& all, size_t i);

/// `after` is what the oracle makes of `before`, to the rounding of each tensor's dtype.
void expect_stepped(const StepCase& before, const StepCase& after);

/// Not a bit differs.
void expect_untouched(const StepCase& before, const StepCase& after);

}  // namespace torchamp
