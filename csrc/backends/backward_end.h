// What the last pass over a backward's grads reads and writes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/ops.h>

namespace torchamp {

/// A loss scale in device memory, one element each, and its update rule.
struct DynamicScale {
  at::Tensor loss_scale;      ///< float32
  at::Tensor growth_tracker;  ///< int32: clean backwards since it grew or overflowed
  ops::ScaleRule rule;        ///< how it is updated
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

}  // namespace torchamp
