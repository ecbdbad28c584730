// math/rounding.h in plain ATen.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchamp::aten {

/// float32 `values` in bfloat16, rounded stochastically by torch's generator.
at::Tensor round_stochastically(const at::Tensor& values);

/// int16, the low bits of float32 `values`, whose roundings to float16 or bfloat16 are `high`.
at::Tensor low_bits_of(const at::Tensor& values, const at::Tensor& high);

/// The float32 values of which `high` and `low_bits` are the halves.
at::Tensor reconstructed(const at::Tensor& high, const at::Tensor& low_bits);

}  // namespace torchamp::aten
