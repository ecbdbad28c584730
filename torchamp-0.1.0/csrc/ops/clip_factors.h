// The factors of grads that are clipped by their norm: the op behind clip_grad_norm_.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torchamp {

/// The norm of some grads, and their factor before clipping (undefined: 1). Float32
/// scalars.
struct NormPart {
  at::Tensor norm;
  at::Tensor factor;
};

/// Float32 scalars on the parts' device.
struct ClipFactors {
  at::Tensor norm;                  ///< of all parts
  at::Tensor coefficient;           ///< max_norm / (norm + 1e-6), at most 1
  std::vector<at::Tensor> clipped;  ///< of each part: factor · coefficient
};

/// For at least one part, all on one device. Does not wait for it.
ClipFactors clip_factors(const std::vector<NormPart>& parts, double max_norm);

}  // namespace torchamp
