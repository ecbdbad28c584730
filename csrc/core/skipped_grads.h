// Which grads a skipped step discards, and which are kept for the steps of other optimizers.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torchamp::core {

class OptimizerState;

/// After a step that is skipped if `skipped`, a float32 scalar on the device, is not 0: discards
/// the grads of the optimizer's parameters that are their own masters, except those that another
/// optimizer is to step by.
void discard_skipped(const OptimizerState& state, const at::Tensor& skipped);

/// Before a backward: discards the 16-bit grads that the optimizer's next step will skip, because
/// the check of their sums would count the same overflow again. Zeros remain, which show whether
/// they are zeroed.
void discard_doomed(const OptimizerState& state);

/// At the end of a step: drops the grads of the optimizer's masters, except those that another
/// optimizer is to step by, unless all of those are to skip, too.
void drop_stepped(const OptimizerState& state);

/// Those of `params`, of the optimizer, that no other is to step.
std::vector<at::Tensor> without_shared(const OptimizerState& state,
                                       const std::vector<at::Tensor>& params);

}  // namespace torchamp::core
