// Beside stage 5: weight grads that add up in float32 where they are made.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

namespace torchamp {
/// @addtogroup ops
/// @{

/// `torch::nn::functional::linear` whose backward adds the weight's grad up in float32: the GEMM
/// that makes it writes into `weight.grad()`, so a micro-batch more costs no pass over the grads,
/// and nothing is rounded to 16 bits on the way.
///
/// input: [*, in_features]. weight: [out_features, in_features]. bias: [out_features] or undefined.
/// Any floating dtype, the same for all; under autocast they are cast. Returns [*, out_features].
///
/// After the backward `weight.grad()` is float32 (float64 for float64), also of a 16-bit weight. It
/// is written behind autograd's back: hooks on the weight do not run, torch::autograd::grad does
/// not return it, and DistributedDataParallel does not see it. Weights that are no leaves, and
/// backwards with create_graph, get their grads as ever.
TORCHAMP_API at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                               const at::Tensor& bias = {});

/// @}

}  // namespace torchamp
