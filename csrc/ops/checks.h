// Checks of an op's single-tensor arguments. Lists are checked as a plan is built: plan_builder.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace torchamp {

/// Throws unless `tensor` has memory for one element of `dtype`.
void check_scalar(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype);

/// Checks that it is on the device of `beside` too, by which the op is dispatched.
void check_scalar(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                  const at::Tensor& beside);

/// Throws unless `tensor` is contiguous, of `dtype` and on `device`.
void check_array(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                 at::Device device);

/// Checks that it has `count` elements, one per `what`, too.
void check_array(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                 at::Device device, const char* what, size_t count);

/// Throws unless `found_inf` is a float32 scalar and `per_tensor`, if given, is contiguous uint8
/// with `length` elements on its device.
void check_flags(const char* op, const at::Tensor& found_inf,
                 const std::optional<at::Tensor>& per_tensor, size_t length);

}  // namespace torchamp
