// Version counters, which autograd and in-place ops increment.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchamp {

/// `tensor._version()`, without the call into autograd's library.
inline uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace torchamp
