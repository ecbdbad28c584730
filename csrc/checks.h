// The checks every op makes before it writes anything.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace torchamp {

/// A list argument and what messages call it.
struct NamedList {
  const char* name;
  at::TensorList tensors;
};

/// Throws unless all lists have the length of the first, and every tensor is dense, of a floating
/// dtype and on `device`, and sized like the tensor at its position in the first list. Undefined
/// tensors in any list are let through.
void check_lists(const char* op, std::initializer_list<NamedList> lists, at::Device device);

/// Throws unless `tensor` has one element of `dtype` (on `device`, if given).
void check_scalar(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                  std::optional<at::Device> device = {});

/// Throws unless `flags`, if given, is contiguous uint8 with `length` elements on `device`.
void check_per_tensor(const char* op, const std::optional<at::Tensor>& flags, size_t length,
                      at::Device device);

}  // namespace torchamp
