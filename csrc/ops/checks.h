// Checks of an op's single-tensor arguments. Lists are checked as a plan is built: plan_builder.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace torchamp {

/// Throws unless `tensor` has one element of `dtype` (on `device`, if given).
void check_scalar(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                  std::optional<at::Device> device = {});

/// Throws unless `tensor` is contiguous, of `dtype` and on `device`.
void check_array(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                 at::Device device);

/// Throws unless `flags`, if given, is contiguous uint8 with `length` elements on `device`.
void check_per_tensor(const char* op, const std::optional<at::Tensor>& flags, size_t length,
                      at::Device device);

}  // namespace torchamp
