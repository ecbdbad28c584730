// Stage 2: cast. A model's parameters and buffers, and what goes into and comes out of its forward.
#pragma once

#include <torch/nn/module.h>
#include <torchamp/detail/export.h>
#include <torchamp/parts.h>

#include <vector>

namespace torchamp {
/// @addtogroup cast
/// @{

/// The floating parameters that cast_module would give another dtype. Each once, however many
/// modules share it.
TORCHAMP_API std::vector<at::Tensor> params_to_cast(torch::nn::Module& module, at::ScalarType dtype,
                                                    bool keep_batchnorm_fp32);

/// Gives floating parameters (their identity stays), their grads and floating buffers `dtype`.
/// `keep_batchnorm_fp32` leaves affine batch norms alone. Recurrent modules get their weights
/// flattened again.
TORCHAMP_API void cast_module(torch::nn::Module& module, at::ScalarType dtype,
                              bool keep_batchnorm_fp32);

/// `value` with its floating tensors in `dtype`: tensors, and those among the Parts of `value`,
/// however deep. All else is as it was.
template <class T>
T cast_floating(T value, at::ScalarType dtype) {
  for_each_tensor(value, [dtype](at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_floating_point()) tensor = tensor.to(dtype);
  });
  return value;
}

/// @}

}  // namespace torchamp
