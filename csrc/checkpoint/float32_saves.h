// The float32 values of tensors that initialize has cast, which torch::save writes.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <vector>

namespace torchamp::checkpoint {

/// The value that a tensor of a model stands for: a float32 copy if it has 16 bits, of its master
/// if it has one; else the tensor itself.
TORCHAMP_API at::Tensor float32_of(const at::Tensor& tensor);

/// Makes torch::save write those of `tensors` that have 16 bits, alone or in a module, in float32:
/// with their masters' values as long as they have masters.
void save_in_float32(const std::vector<at::Tensor>& tensors);

}  // namespace torchamp::checkpoint
