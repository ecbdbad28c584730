// Reads what autograd knows of a tensor without the calls into its library.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace torchamp {

/// `tensor.grad()` of a leaf; at::Tensor's asks autograd whether it is one.
inline const at::Tensor& grad_of(const at::Tensor& leaf) {
  return std::as_const(*leaf.unsafeGetTensorImpl()).grad();
}

/// `tensor._version()`, which in-place ops increment.
inline uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace torchamp
