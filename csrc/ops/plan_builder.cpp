#include "ops/plan_builder.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "backends/parallel.h"
#include "ops/memory.h"

namespace torchamp {
namespace {

using at::Tensor;
using at::TensorList;
using Lists = c10::ArrayRef<NamedList>;

const Tensor& tensor_at(const NamedList& list, size_t i) {
  static const auto& none = *new Tensor;
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
  check_memory(op, list.name, list.first + i, tensor, /*takes_meta=*/tensor.device().is_meta());
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

/// Whether they share memory, but not element by element. As in ATen's ops, most strides are left
/// open. ATen also compares the strides of axes of one element.
bool overlaps_in_part(const Tensor& one, const Tensor& other) {
  if (at::get_overlap_status(one, other) != at::MemOverlapStatus::Partial) return false;
  return one.const_data_ptr() != other.const_data_ptr() ||
         one.scalar_type() != other.scalar_type() ||
         one.squeeze().strides() != other.squeeze().strides();
}

void check_written(const char* op, Lists lists, const NamedList& written, size_t i) {
  const Tensor& tensor = written.tensors[i];
  TORCH_CHECK(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, op, ": expected ",
              written.name, "[", i, "] to have memory for each element, got strides ",
              tensor.strides());
  for (const NamedList& other : lists) {
    const Tensor& read = tensor_at(other, i);
    if (&other == &written || !read.defined()) continue;
    TORCH_CHECK(!overlaps_in_part(tensor, read), op, ": expected ", written.name, "[", i,
                "] to be ", other.name, "[", i,
                "] or to share no memory with it, got one that overlaps it in part");
  }
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
    if (list.written) check_written(op, lists, list, i);
    present &= tensor.numel() > 0;
  }
  return present;
}

constexpr uintptr_t kCacheLine = 64;

void prefetch(const void* begin, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(begin) & ~(kCacheLine - 1);
  const auto end = reinterpret_cast<uintptr_t>(begin) + bytes;
  for (uintptr_t line = first; line < end; line += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(line));
  }
}

/// Thousands of small tensors are as many cache misses: prefetches the tensors' headers, and
/// then their storages'.
void prefetch_ahead(Lists lists, size_t i) {
  constexpr size_t kHeaderAhead = 16, kStorageAhead = 8;
  for (const NamedList& list : lists) {
    if (i + kHeaderAhead >= list.tensors.size()) continue;
    const void* header = list.tensors[i + kHeaderAhead].unsafeGetTensorImpl();
    prefetch(header, sizeof(c10::TensorImpl));
    const Tensor& next = list.tensors[i + kStorageAhead];
    if (next.defined())
      prefetch(next.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(), kCacheLine);
  }
}

/// The reason why a position is not planned.
constexpr int32 kLeftOut = -1, kRest = -2;

/// Whether memory holds the elements as they are: a kernel does not see a lazy negation.
bool is_dense(const Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.layout() == at::kStrided && has_memory(impl) && !tensor.is_neg();
}

bool has_strides_of(const c10::TensorImpl& first, const c10::TensorImpl& other) {
  return (first.is_contiguous() && other.is_contiguous()) || first.strides() == other.strides();
}

/// How the kernels read `tensor`; empty if they cannot walk it together with `first`.
std::optional<DType> plannable(const Tensor& tensor, const Tensor& first, at::Device device) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const bool walks_along = is_dense(tensor) && impl.device() == device &&
                           impl.sizes() == first.sizes() &&
                           has_strides_of(*first.unsafeGetTensorImpl(), impl);
  return walks_along ? kernel_dtype(tensor) : std::nullopt;
}

/// The flat plan of all positions, before those that are not planned are taken out: offsets[i + 1]
/// holds the elements of position i, positions[i] itself or why it is not planned.
class Table {
 public:
  Table(const char* op, Lists lists, at::Device device, bool use_kernels)
      : op_(op), lists_(lists), device_(device), use_kernels_(use_kernels) {
    const size_t length = lists.begin()->tensors.size();
    plan_.lists = static_cast<int>(lists.size());
    plan_.data.resize(length * lists.size());
    plan_.dtypes.resize(length * lists.size());
    plan_.offsets.resize(length + 1);
    plan_.positions.resize(length);
  }

  void fill(size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      prefetch_ahead(lists_, i);
      plan_.positions[i] = planned(i) ? static_cast<int32>(i) : checked(i);
    }
  }

  Work take() {
    Work work;
    size_t kept = 0;
    int64 elements = 0;
    for (size_t i = 0; i < plan_.positions.size(); ++i) {
      if (plan_.positions[i] == kRest) work.rest.push_back(static_cast<int64_t>(i));
      if (plan_.positions[i] < 0) continue;
      elements += plan_.offsets[i + 1];
      move(i, kept);
      plan_.offsets[++kept] = elements;
    }
    truncate(kept);
    work.plan = std::move(plan_);
    return work;
  }

 private:
  /// Enters position i if the kernels support it; gives no reason if not.
  bool planned(size_t i) {
    const Tensor& first = lists_.begin()->tensors[i];
    if (!use_kernels_ || !first.defined() || first.numel() == 0) return false;
    if (!enter_first(first, i * lists_.size())) return false;
    for (size_t list = 1; list < lists_.size(); ++list) {
      if (!enter(lists_.begin()[list], i, first, i * lists_.size() + list)) return false;
    }
    plan_.offsets[i + 1] = first.numel();
    return true;
  }

  bool enter_first(const Tensor& first, size_t at) {
    if (!is_dense(first) || !first.is_non_overlapping_and_dense() || first.device() != device_)
      return false;
    const std::optional<DType> dtype = kernel_dtype(first);
    if (!dtype) return false;
    plan_.data[at] = first.data_ptr();
    plan_.dtypes[at] = *dtype;
    return true;
  }

  bool enter(const NamedList& list, size_t i, const Tensor& first, size_t at) {
    const Tensor& tensor = tensor_at(list, i);
    if (!tensor.defined()) {
      plan_.data[at] = nullptr;
      plan_.dtypes[at] = DType::kFloat32;
      return list.optional;
    }
    if (list.known != nullptr) {
      plan_.data[at] = list.known->find(list.first_known + i, tensor, first, plan_.dtypes[at]);
      if (plan_.data[at] != nullptr) return true;
    }
    const std::optional<DType> dtype = plannable(tensor, first, device_);
    if (!dtype) return false;
    plan_.data[at] = tensor.data_ptr();
    plan_.dtypes[at] = *dtype;
    if (list.written && overlaps_in_part(i * lists_.size(), at, first.numel())) return false;
    if (list.known != nullptr) list.known->learn(list.first_known + i, tensor, *dtype);
    return true;
  }

  /// Whether the tensor entered at `at` does so with one from `first` on.
  bool overlaps_in_part(size_t first, size_t at, int64 count) const {
    const auto begin = [&](size_t k) { return reinterpret_cast<uintptr_t>(plan_.data[k]); };
    const auto end = [&](size_t k) { return begin(k) + count * size_of(plan_.dtypes[k]); };
    for (size_t k = first; k < at; ++k) {
      const bool is_same = begin(k) == begin(at) && end(k) == end(at);
      if (!is_same && begin(k) < end(at) && begin(at) < end(k)) return true;
    }
    return false;
  }

  int32 checked(size_t i) const {
    return check_position(op_, lists_, i, device_) ? kRest : kLeftOut;
  }

  void move(size_t from, size_t to) {
    if (from == to) return;
    const auto lists = static_cast<size_t>(plan_.lists);
    std::copy_n(&plan_.data[from * lists], lists, &plan_.data[to * lists]);
    std::copy_n(&plan_.dtypes[from * lists], lists, &plan_.dtypes[to * lists]);
    plan_.positions[to] = plan_.positions[from];
  }

  void truncate(size_t tensors) {
    plan_.data.resize(tensors * plan_.lists);
    plan_.dtypes.resize(tensors * plan_.lists);
    plan_.offsets.resize(tensors + 1);
    plan_.positions.resize(tensors);
  }

  const char* op_;
  Lists lists_;
  at::Device device_;
  bool use_kernels_;
  Plan plan_;
};

}  // namespace

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

Work build_plan(const char* op, Lists lists, const DeviceKernels& kernels) {
  constexpr int64 kWorthAThread = 1024;
  for (const NamedList& list : lists) check_length(op, *lists.begin(), list);
  Table table(op, lists, kernels.device(), kernels.usable());
  const auto length = static_cast<int64>(lists.begin()->tensors.size());
  const int64 parts = std::max<int64>(1, length / kWorthAThread);
  parallel_for(parts, [&](int64 first, int64 last) {
    table.fill(first * length / parts, last * length / parts);
  });
  return table.take();
}

const Tensor& first_defined(TensorList tensors) {
  static const auto& none = *new Tensor(at::empty({0}, at::kFloat));
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) return tensor;
  }
  return none;
}

const Tensor& dispatched_by(const char* op, const char* name, TensorList tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    check_memory(op, name, i, tensors[i], /*takes_meta=*/true);
    break;
  }
  return first_defined(tensors);
}

Flags make_flags(const Tensor& found_inf, const std::optional<Tensor>& per_tensor) {
  Flags flags;
  if (found_inf.defined()) flags.found_inf = found_inf.mutable_data_ptr<float>();
  if (per_tensor.has_value()) flags.per_tensor = per_tensor->mutable_data_ptr<uint8_t>();
  return flags;
}

}  // namespace torchamp
