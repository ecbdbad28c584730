// A backward's passes over its grads, the last of which ends it: the op behind
// MasterWeights::finish_backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/loss_scaler.h>

namespace torchamp {

/// What ends with the last pass. Float32 scalars on the grads' device, where not said otherwise.
struct BackwardEnding {
  at::Tensor found_inf;     ///< written: 1 if a grad is not finite or found_before is not 0, else 0
  at::Tensor inv_scale;     ///< written: 1 / loss_scale
  at::Tensor per_tensor;    ///< written: uint8, one element a position; which are not finite
  at::Tensor found_before;  ///< undefined: 0
  at::Tensor norm;          ///< written: of the grads that are only checked; undefined: not wanted
  bool adds_per_tensor = false;         ///< to what is in per_tensor
  const DynamicScale* moved = nullptr;  ///< moves by found_inf; may hold the loss_scale itself
  at::Tensor report;  ///< written: a Report, in memory that host and device see; undefined: none
};

/// Bytes of what passes report before those of the tensors, which are aligned to as many: a ticket,
/// and found_inf.
constexpr int64_t kRaisedHeader = 16;

/// What passes report to the ending, of lists of this length: uint8, zeros before the first pass
/// and after the ending.
at::Tensor make_raised(int64_t length, at::Device device);

/// master_grads = scaled_grads / loss_scale, or += with `accumulate`; grads whose master grad is
/// undefined are only checked. `ending`: null but for the last pass.
void pass_over_grads(at::TensorList scaled_grads, at::TensorList master_grads,
                     const at::Tensor& loss_scale, bool accumulate, const at::Tensor& raised,
                     const BackwardEnding* ending);

}  // namespace torchamp
