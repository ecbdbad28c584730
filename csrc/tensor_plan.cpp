#include "tensor_plan.h"

namespace torchamp {
namespace {

std::optional<DType> kernel_dtype(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kHalf:
      return DType::kFloat16;
    case at::kBFloat16:
      return DType::kBFloat16;
    default:
      return std::nullopt;
  }
}

bool is_absent(const std::vector<at::TensorList>& lists, size_t position) {
  for (const auto& list : lists) {
    if (!list[position].defined() || list[position].numel() == 0) return true;
  }
  return false;
}

/// One stretch of memory each, in which the same element has the same place.
bool is_flat(const std::vector<at::TensorList>& lists, size_t position) {
  const at::Tensor& first = lists.front()[position];
  for (const auto& list : lists) {
    const at::Tensor& tensor = list[position];
    const bool same_order =
        tensor.strides() == first.strides() || (tensor.is_contiguous() && first.is_contiguous());
    if (!kernel_dtype(tensor) || !same_order) return false;
  }
  return first.is_non_overlapping_and_dense();
}

void append(Plan& plan, const std::vector<at::TensorList>& lists, size_t position) {
  for (const auto& list : lists) {
    plan.data.push_back(list[position].data_ptr());
    plan.dtypes.push_back(*kernel_dtype(list[position]));
  }
  plan.offsets.push_back(plan.offsets.back() + lists.front()[position].numel());
  plan.positions.push_back(static_cast<int32>(position));
}

}  // namespace

Work split_work(const std::vector<at::TensorList>& lists) {
  Work work;
  work.plan.lists = static_cast<int>(lists.size());
  const size_t length = lists.front().size();
  work.plan.data.reserve(length * lists.size());
  work.plan.offsets.reserve(length + 1);
  for (size_t position = 0; position < length; ++position) {
    if (is_absent(lists, position)) continue;
    if (is_flat(lists, position)) {
      append(work.plan, lists, position);
    } else {
      work.rest.push_back(static_cast<int64_t>(position));
    }
  }
  return work;
}

Flags make_flags(const at::Tensor& found_inf, const std::optional<at::Tensor>& per_tensor) {
  Flags flags;
  if (found_inf.defined()) flags.found_inf = found_inf.mutable_data_ptr<float>();
  if (per_tensor.has_value()) flags.per_tensor = per_tensor->mutable_data_ptr<uint8_t>();
  return flags;
}

}  // namespace torchamp
