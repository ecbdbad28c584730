// Beside stage 5: weight grads accumulated in float32, in the GEMM that computes them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

namespace torchamp {
/// @addtogroup ops
/// @{

/// `torch::nn::functional::linear` whose backward accumulates the weight's grad in float32: the
/// GEMM that computes it writes to `weight.grad()`, so another micro-batch costs no pass over the
/// grads, and nothing is rounded to 16 bits in between.
///
/// input: [*, in_features]. weight: [out_features, in_features]. bias: [out_features] or undefined.
/// Any floating dtype, the same for all; under autocast they are cast. Returns [*, out_features].
///
/// After the backward `weight.grad()` is float32 (float64 for float64), also of a 16-bit weight. It
/// is written bypassing autograd: hooks on the weight do not run, torch::autograd::grad does
/// not return it, and DistributedDataParallel does not see it. Weights that are not leaves,
/// and backwards with create_graph, get their grads from autograd.
TORCHAMP_API at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                               const at::Tensor& bias = {});

/// @}

}  // namespace torchamp
