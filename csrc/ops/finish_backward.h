// A backward's passes over its grads, the last of which ends it: the op behind
// OptimizerState::finish.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/ops.h>

namespace torchamp {

/// A loss scale in device memory, one element each, and its update rule.
struct DynamicScale {
  at::Tensor loss_scale;          ///< float32
  at::Tensor growth_tracker;      ///< int32: clean backwards since it grew or overflowed
  at::Tensor hysteresis_tracker;  ///< int32: overflows until it backs off
  ops::ScaleRule rule;            ///< how it is updated
};

/// The inputs and outputs of the last pass. Float32 scalars on the grads' device, unless noted
/// otherwise.
struct BackwardEnd {
  at::Tensor found_inf;     ///< written: 1 if a grad is not finite or found_before is not 0, else 0
  at::Tensor inv_scale;     ///< written: 1 / loss_scale
  at::Tensor per_tensor;    ///< written: uint8, one element per position; which are not finite
  at::Tensor found_before;  ///< undefined: 0
  at::Tensor loss;          ///< scaled; undefined: unknown
  at::Tensor norm;    ///< written: of the grads that are only checked; undefined: not computed
  at::Tensor report;  ///< written: a Report, in memory that host and device see; undefined: none
  bool adds_per_tensor = false;         ///< to what is in per_tensor
  const DynamicScale* moved = nullptr;  ///< updated by found_inf; may hold the loss_scale itself
};

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
