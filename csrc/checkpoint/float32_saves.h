// Lets torch::save write tensors that initialize has cast in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace torchamp::checkpoint {

/// Makes torch::save write those of `tensors` that have 16 bits, alone or in a module, in float32:
/// with their masters' values as long as they have masters.
void save_in_float32(const std::vector<at::Tensor>& tensors);

}  // namespace torchamp::checkpoint
