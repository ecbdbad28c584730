#include "gather.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "cpu/parallel.h"

namespace torchamp {
namespace {

using at::Tensor;
using Lists = std::initializer_list<NamedList>;

std::optional<DType> kernel_dtype(const Tensor& tensor) {
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

const Tensor none;

const Tensor& tensor_at(const NamedList& list, size_t i) {
  return list.tensors.empty() ? none : list.tensors[i];
}

void check_length(const char* op, const NamedList& first, const NamedList& other) {
  if (other.optional && other.tensors.empty()) return;
  TORCH_CHECK(other.tensors.size() == first.tensors.size(), op, ": expected ", other.name,
              " to have as many tensors as ", first.name, ", ", first.tensors.size(), ", got ",
              other.tensors.size());
}

void check_tensor(const char* op, const NamedList& list, size_t i, at::Device device) {
  const Tensor& tensor = list.tensors[i];
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, op, ": expected ", list.name, "[",
                   list.first + i, "] to be dense, got layout ", tensor.layout());
  TORCH_CHECK_TYPE(kernel_dtype(tensor) || tensor.scalar_type() == at::kDouble, op, ": expected ",
                   list.name, "[", list.first + i,
                   "] to be float16, bfloat16, float32 or float64, got ", tensor.scalar_type());
  TORCH_CHECK(tensor.device() == device, op, ": expected ", list.name, "[", list.first + i,
              "] to be on ", device, ", got ", tensor.device());
}

void check_sizes(const char* op, const NamedList& first, const NamedList& other, size_t i) {
  const Tensor& expected = first.tensors[i];
  const Tensor& got = other.tensors[i];
  TORCH_CHECK(got.sizes() == expected.sizes(), op, ": expected ", other.name, "[", other.first + i,
              "] to have the sizes of ", first.name, "[", i, "], ", expected.sizes(), ", got ",
              got.sizes());
}

/// Checks position i; returns whether every list has a tensor there that is not empty.
bool check_position(const char* op, Lists lists, size_t i, at::Device device) {
  bool present = true;
  const NamedList& first = *lists.begin();
  for (const NamedList& list : lists) {
    const Tensor& tensor = tensor_at(list, i);
    if (!tensor.defined()) {
      present &= list.optional;
      continue;
    }
    check_tensor(op, list, i, device);
    if (first.tensors[i].defined()) check_sizes(op, first, list, i);
    present &= tensor.numel() > 0;
  }
  return present;
}

/// Whether the tensors at position i are one stretch of memory each, in which the same element has
/// the same place.
bool is_flat(Lists lists, size_t i) {
  const Tensor& first = lists.begin()->tensors[i];
  for (const NamedList& list : lists) {
    const Tensor& tensor = tensor_at(list, i);
    if (!tensor.defined()) continue;
    const bool same_order =
        (tensor.is_contiguous() && first.is_contiguous()) || tensor.strides() == first.strides();
    if (!kernel_dtype(tensor) || !same_order) return false;
  }
  return first.is_non_overlapping_and_dense();
}

void append(Plan& plan, Lists lists, size_t i) {
  for (const NamedList& list : lists) {
    const Tensor& tensor = tensor_at(list, i);
    plan.data.push_back(tensor.defined() ? tensor.data_ptr() : nullptr);
    plan.dtypes.push_back(tensor.defined() ? *kernel_dtype(tensor) : DType::kFloat32);
  }
  plan.offsets.push_back(plan.offsets.back() + lists.begin()->tensors[i].numel());
  plan.positions.push_back(static_cast<int32>(i));
}

void reserve(Plan& plan, size_t tensors) {
  plan.data.reserve(tensors * plan.lists);
  plan.dtypes.reserve(tensors * plan.lists);
  plan.offsets.reserve(tensors + 1);
  plan.positions.reserve(tensors);
}

constexpr uintptr_t kCacheLine = 64;

void prefetch(const void* begin, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(begin) & ~(kCacheLine - 1);
  const auto end = reinterpret_cast<uintptr_t>(begin) + bytes;
  for (uintptr_t line = first; line < end; line += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(line));
  }
}

/// Thousands of small tensors are as many cache misses: asks early for the tensors' headers, and
/// then for their storages'.
void prefetch_ahead(Lists lists, size_t i) {
  constexpr size_t kHeaderAhead = 16, kStorageAhead = 8;
  for (const NamedList& list : lists) {
    if (i + kHeaderAhead >= list.tensors.size()) continue;
    prefetch(list.tensors[i + kHeaderAhead].unsafeGetTensorImpl(), sizeof(c10::TensorImpl));
    const Tensor& next = list.tensors[i + kStorageAhead];
    if (next.defined())
      prefetch(next.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(), kCacheLine);
  }
}

struct Range {
  size_t begin;
  size_t end;
};

Work gather_range(const char* op, Lists lists, at::Device device, bool use_kernels, Range range) {
  Work work;
  work.plan.lists = static_cast<int>(lists.size());
  reserve(work.plan, range.end - range.begin);
  for (size_t i = range.begin; i < range.end; ++i) {
    prefetch_ahead(lists, i);
    if (!check_position(op, lists, i, device)) continue;
    if (use_kernels && is_flat(lists, i)) {
      append(work.plan, lists, i);
    } else {
      work.rest.push_back(static_cast<int64_t>(i));
    }
  }
  return work;
}

template <class T>
void append_all(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// Puts the work of neighbouring ranges together, in their order.
Work joined(const std::vector<Work>& parts) {
  Work work = parts.front();
  for (size_t p = 1; p < parts.size(); ++p) {
    const Plan& next = parts[p].plan;
    const int64 before = work.plan.elements();
    append_all(work.plan.data, next.data);
    append_all(work.plan.dtypes, next.dtypes);
    append_all(work.plan.positions, next.positions);
    for (size_t t = 1; t < next.offsets.size(); ++t) {
      work.plan.offsets.push_back(before + next.offsets[t]);
    }
    append_all(work.rest, parts[p].rest);
  }
  return work;
}

}  // namespace

Work gather(const char* op, Lists lists, at::Device device, bool use_kernels) {
  constexpr size_t kWorthAThread = 1024;
  for (const NamedList& list : lists) check_length(op, *lists.begin(), list);
  const size_t length = lists.begin()->tensors.size();
  const auto gather_part = [&](size_t begin, size_t end) {
    return gather_range(op, lists, device, use_kernels, {begin, end});
  };
  if (length < 2 * kWorthAThread) return gather_part(0, length);
  std::vector<Work> parts((length + kWorthAThread - 1) / kWorthAThread);
  cpu::parallel_for(static_cast<int64>(parts.size()), [&](int64 first, int64 last) {
    for (int64 p = first; p < last; ++p) {
      parts[p] = gather_part(p * kWorthAThread, std::min<size_t>(length, (p + 1) * kWorthAThread));
    }
  });
  return joined(parts);
}

Flags make_flags(const Tensor& found_inf, const std::optional<Tensor>& per_tensor) {
  Flags flags;
  if (found_inf.defined()) flags.found_inf = found_inf.mutable_data_ptr<float>();
  if (per_tensor.has_value()) flags.per_tensor = per_tensor->mutable_data_ptr<uint8_t>();
  return flags;
}

}  // namespace torchamp
