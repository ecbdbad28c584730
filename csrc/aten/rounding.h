// math/rounding.h in plain ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace torchamp::aten {

/// Whose noise rounds a tensor: `list` of a step's lists at `position`, in step number `step`, a
/// 0-dim tensor.
struct NoiseOf {
  int64_t position;
  at::Tensor step;
  int list;
};

/// float32 `values` in bfloat16, rounded stochastically for `target`, whose elements are numbered
/// in the order of memory if they are dense, else in that of the sizes.
at::Tensor round_stochastically(const at::Tensor& values, const at::Tensor& target,
                                const NoiseOf& of);

}  // namespace torchamp::aten
