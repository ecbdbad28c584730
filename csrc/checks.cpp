#include "checks.h"

#include <c10/util/Exception.h>

namespace torchamp {
namespace {

void check_length(const char* op, const NamedList& first, const NamedList& other) {
  TORCH_CHECK(other.tensors.size() == first.tensors.size(), op, ": expected ", other.name,
              " to have as many tensors as ", first.name, ", ", first.tensors.size(), ", got ",
              other.tensors.size());
}

void check_tensor(const char* op, const NamedList& list, size_t i, at::Device device) {
  const at::Tensor& tensor = list.tensors[i];
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, op, ": expected ", list.name, "[", i,
                   "] to be dense, got layout ", tensor.layout());
  TORCH_CHECK_TYPE(at::isFloatingType(tensor.scalar_type()) && tensor.element_size() >= 2, op,
                   ": expected ", list.name, "[", i,
                   "] to be float16, bfloat16, float32 or float64, got ", tensor.scalar_type());
  TORCH_CHECK(tensor.device() == device, op, ": expected ", list.name, "[", i, "] to be on ",
              device, ", got ", tensor.device());
}

void check_sizes(const char* op, const NamedList& first, const NamedList& other, size_t i) {
  const at::Tensor& expected = first.tensors[i];
  const at::Tensor& got = other.tensors[i];
  if (!expected.defined() || !got.defined()) return;
  TORCH_CHECK(got.sizes() == expected.sizes(), op, ": expected ", other.name, "[", i,
              "] to have the sizes of ", first.name, "[", i, "], ", expected.sizes(), ", got ",
              got.sizes());
}

}  // namespace

void check_lists(const char* op, std::initializer_list<NamedList> lists, at::Device device) {
  const NamedList& first = *lists.begin();
  for (const NamedList& list : lists) check_length(op, first, list);
  for (const NamedList& list : lists) {
    for (size_t i = 0; i < list.tensors.size(); ++i) {
      if (list.tensors[i].defined()) check_tensor(op, list, i, device);
      check_sizes(op, first, list, i);
    }
  }
}

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
