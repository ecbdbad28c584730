// The factors of grads that are clipped by their total norm.
#pragma once

#include "math/macros.h"

namespace torchamp {

/// The norm of some grads, and their factor before clipping. `clipped`: the factor after
/// clipping. Null: factor 1; no clipped factor.
struct ClipPart {
  const float* norm;
  const float* factor;
  float* clipped;
};

/// As many parts as fit a kernel's parameter.
constexpr int kClipParts = 1000;

/// The inputs and outputs of a clipping, on the device.
struct Clipping {
  float max_norm;
  float* norm;         ///< written: the norm of all parts
  float* coefficient;  ///< written: the clipping coefficient
  int32 count;
  ClipPart parts[kClipParts];
};

TORCHAMP_MATH double factor(const ClipPart& part) {
  return part.factor == nullptr ? 1.0 : *part.factor;
}

/// torch.nn.utils.clip_grad_norm_'s coefficient.
TORCHAMP_MATH void clip_by_norm(const Clipping& clipping) {
  double squares = 0.0;
  for (int32 i = 0; i < clipping.count; ++i) {
    const double norm = *clipping.parts[i].norm * factor(clipping.parts[i]);
    squares += norm * norm;
  }
  const auto norm = static_cast<float>(sqrt(squares));
  const float ratio = clipping.max_norm / (norm + 1e-6f);
  const float coefficient = ratio > 1.0f ? 1.0f : ratio;
  *clipping.norm = norm;
  *clipping.coefficient = coefficient;
  for (int32 i = 0; i < clipping.count; ++i) {
    const ClipPart& part = clipping.parts[i];
    if (part.clipped != nullptr) *part.clipped = static_cast<float>(factor(part) * coefficient);
  }
}

}  // namespace torchamp
