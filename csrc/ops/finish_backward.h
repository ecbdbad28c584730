// A backward's passes over its grads, the last of which ends it: the op behind
// OptimizerState::finish.
#pragma once

#include "backends/backward_end.h"

namespace torchamp {

/// Bytes of overflow flags before those of the tensors, which are aligned to as many: a ticket and
/// found_inf.
constexpr int64_t kFlagsHeader = 16;

/// The overflow flags of passes over lists of this length, for the last one: uint8, zeros before
/// the first pass and after the last.
at::Tensor make_overflow_flags(int64_t length, at::Device device);

/// master_grads = scaled_grads / loss_scale, or += with `accumulate`; grads whose master grad is
/// undefined are only checked. `end`: null except for the last pass.
void pass_over_grads(at::TensorList scaled_grads, at::TensorList master_grads,
                     const at::Tensor& loss_scale, bool accumulate,
                     const at::Tensor& overflow_flags, const BackwardEnd* end);

}  // namespace torchamp
