// Stage 2: cast. A model's parameters and buffers, and its forward's inputs and outputs.
#pragma once

#include <torch/nn/module.h>
#include <torchamp/detail/export.h>
#include <torchamp/parts.h>

#include <string>
#include <utility>
#include <vector>

namespace torchamp {
/// @addtogroup cast
/// @{

/// The floating parameters whose dtype cast_module would change. Each once, even if several
/// modules share it.
TORCHAMP_API std::vector<at::Tensor> params_to_cast(torch::nn::Module& module, at::ScalarType dtype,
                                                    bool keep_batchnorm_fp32,
                                                    const std::vector<std::string>& keep_fp32 = {});

/// The floating buffers whose dtype cast_module would change, with their names in `module`.
TORCHAMP_API std::vector<std::pair<std::string, at::Tensor>> buffers_to_cast(
    torch::nn::Module& module, at::ScalarType dtype, bool keep_batchnorm_fp32,
    const std::vector<std::string>& keep_fp32 = {});

/// Casts floating parameters (in place), their grads and floating buffers to `dtype`.
/// `keep_batchnorm_fp32` excludes batch norms, `keep_fp32` the buffers and modules of these names
/// and those in them. The weights of recurrent modules are flattened again.
TORCHAMP_API void cast_module(torch::nn::Module& module, at::ScalarType dtype,
                              bool keep_batchnorm_fp32,
                              const std::vector<std::string>& keep_fp32 = {});

/// Flattens the weights of the recurrent modules in `module`, whose memory has changed.
TORCHAMP_API void flatten_recurrent(torch::nn::Module& module);

/// `value` with its floating tensors in `dtype`: tensors, and those among the Parts of `value`,
/// at any depth. The rest is unchanged.
template <class T>
T cast_floating(T value, at::ScalarType dtype) {
  for_each_tensor(value, [dtype](at::Tensor& tensor) {
    if (tensor.defined() && tensor.is_floating_point()) tensor = tensor.to(dtype);
  });
  return value;
}

/// @}

}  // namespace torchamp
