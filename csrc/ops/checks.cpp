#include "ops/checks.h"

#include <c10/util/Exception.h>

namespace torchamp {
void check_scalar(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                  std::optional<at::Device> device) {
  TORCH_CHECK_TYPE(tensor.defined(), op, ": expected ", name, " to be a tensor, got none");
  TORCH_CHECK_TYPE(tensor.scalar_type() == dtype, op, ": expected ", name, " to be ", dtype,
                   ", got ", tensor.scalar_type());
  TORCH_CHECK(tensor.numel() == 1, op, ": expected ", name, " to have one element, got sizes ",
              tensor.sizes());
  TORCH_CHECK(!device || tensor.device() == *device, op, ": expected ", name, " to be on ",
              device.value_or(tensor.device()), ", got ", tensor.device());
}

void check_array(const char* op, const char* name, const at::Tensor& tensor, at::ScalarType dtype,
                 at::Device device) {
  TORCH_CHECK_TYPE(tensor.defined(), op, ": expected ", name, " to be a tensor, got none");
  TORCH_CHECK_TYPE(tensor.scalar_type() == dtype && tensor.is_contiguous(), op, ": expected ", name,
                   " to be contiguous ", dtype, ", got ", tensor.scalar_type());
  TORCH_CHECK(tensor.device() == device, op, ": expected ", name, " to be on ", device, ", got ",
              tensor.device());
}

void check_per_tensor(const char* op, const std::optional<at::Tensor>& flags, size_t length,
                      at::Device device) {
  if (!flags.has_value()) return;
  TORCH_CHECK_TYPE(flags->scalar_type() == at::kByte && flags->is_contiguous(), op,
                   ": expected found_inf_per_tensor to be contiguous uint8, got ",
                   flags->scalar_type());
  TORCH_CHECK(static_cast<size_t>(flags->numel()) == length, op,
              ": expected found_inf_per_tensor to have one element a tensor, ", length, ", got ",
              flags->numel());
  TORCH_CHECK(flags->device() == device, op, ": expected found_inf_per_tensor to be on ", device,
              ", got ", flags->device());
}

}  // namespace torchamp
