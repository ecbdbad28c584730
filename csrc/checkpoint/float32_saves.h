// What torch::save writes of tensors that initialize has cast.
#pragma once

#include <torchamp/detail/masters.h>

#include <memory>
#include <vector>

namespace torchamp::checkpoint {

/// Makes torch::save write those of `tensors` that have 16 bits, alone or in a module, in float32:
/// with their masters' values as long as `masters`, which may be null, exists.
void save_in_float32(const std::vector<at::Tensor>& tensors,
                     const std::shared_ptr<core::Masters>& masters);

}  // namespace torchamp::checkpoint
