// math/rounding.h in plain ATen.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchamp::aten {

/// float32 `values` in bfloat16, rounded stochastically by torch's generator.
at::Tensor round_stochastically(const at::Tensor& values);

}  // namespace torchamp::aten
