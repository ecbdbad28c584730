#include "ops/checks.h"

#include <c10/util/Exception.h>

#include "ops/memory.h"

namespace torchamp {

void check_scalar(const char* op, const char* name, const at::Tensor& tensor,
                  at::ScalarType dtype) {
  check_scalar(op, name, tensor, dtype, tensor);
}

void check_scalar(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                  const at::Tensor& beside) {
  TORCH_CHECK_TYPE(tensor.defined(), op, ": expected ", name, " to be a tensor, got none");
  TORCH_CHECK_TYPE(tensor.scalar_type() == dtype, op, ": expected ", name, " to be ", dtype,
                   ", got ", tensor.scalar_type());
  check_memory(op, name, tensor, /*takes_meta=*/is_meta(beside) || tensor.device().is_meta());
  TORCH_CHECK(tensor.numel() == 1, op, ": expected ", name, " to have one element, got sizes ",
              tensor.sizes());
  TORCH_CHECK(tensor.device() == beside.device(), op, ": expected ", name, " to be on ",
              beside.device(), ", got ", tensor.device());
}

void check_array(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                 at::Device device) {
  TORCH_CHECK_TYPE(tensor.defined(), op, ": expected ", name, " to be a tensor, got none");
  TORCH_CHECK_TYPE(tensor.scalar_type() == dtype && tensor.is_contiguous(), op, ": expected ", name,
                   " to be contiguous ", dtype, ", got ", tensor.scalar_type());
  TORCH_CHECK(tensor.device() == device, op, ": expected ", name, " to be on ", device, ", got ",
              tensor.device());
}

void check_array(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                 at::Device device, const char* what, size_t count) {
  check_array(op, name, tensor, dtype, device);
  TORCH_CHECK(static_cast<size_t>(tensor.numel()) == count, op, ": expected ", name,
              " to have one element per ", what, ", ", count, ", got ", tensor.numel());
}

void check_flags(const char* op, const at::Tensor& found_inf,
                 const std::optional<at::Tensor>& per_tensor, size_t length) {
  check_scalar(op, "found_inf", found_inf, at::kFloat);
  if (!per_tensor.has_value()) return;
  constexpr const char* kName = "found_inf_per_tensor";
  check_array(op, kName, *per_tensor, at::kByte, found_inf.device(), "tensor", length);
  check_memory(op, kName, *per_tensor, /*takes_meta=*/is_meta(found_inf));
}

}  // namespace torchamp
