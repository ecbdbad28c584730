// The product x · B, B [K, N] being a weight or its transpose, and its grads.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <optional>

#include "float8/weights.h"

namespace torchamp::float8 {

/// Which weight an op multiplies by.
struct Call {
  Found found;
  bool is_linear;        ///< the op takes Bᵀ, as aten::linear does; else B
  at::ScalarType dtype;  ///< of the output

  /// Whether B is the weight's transpose.
  bool is_transposed() const { return is_linear != found.is_transpose; }
};

/// input [..., K] · B + bias [N], differentiable once. `weight`: what the op was given, to which
/// the grad flows.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias, const Call& call);

/// Registers the kernels of linear, addmm, matmul and mm on kFloat8Key, and a fallthrough for all
/// other ops, for good: threads may be open when the last model closes. Throws RuntimeError where
/// another library has the key.
void register_kernels();

/// Logs, once a graph of torch.compile has a product, that it is in bfloat16.
TORCHAMP_API void tell_of_next_graph();

}  // namespace torchamp::float8
