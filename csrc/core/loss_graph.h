// What the autograd graph of a loss shows about how the loss was computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <vector>

namespace torchamp::core {

/// What its backward gives grads, as far as the graph shows: not the parameters of a checkpointed
/// segment that is recomputed by another backward.
std::vector<at::Tensor> leaves_of(const at::Tensor& loss);

/// Whether a binary cross entropy among the last nodes before `loss` takes the output of a sigmoid
/// that was computed in 16 bits, cast to float32 or not: it is 1 from 8.4 on in float16, and from
/// 6.3 on in bfloat16, where the loss is 100 and its grad overflows.
TORCHAMP_API bool has_cross_entropy_of_16_bit_sigmoid(const at::Tensor& loss);

}  // namespace torchamp::core
