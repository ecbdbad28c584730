// Builds a kernel's plan from an op's lists of tensors, and checks them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <optional>
#include <vector>

#include "backends/plan.h"
#include "ops/device_kernels.h"
#include "ops/known_tensors.h"

namespace torchamp {

/// The tensor's dtype, if the kernels have it.
std::optional<DType> kernel_dtype(const at::Tensor& tensor);

/// A list argument, or the part of one from number `first` on, and its name in messages. In an
/// optional one, some or all tensors may be missing.
struct NamedList {
  const char* name;
  at::TensorList tensors;
  bool optional = false;
  size_t first = 0;
  bool written = false;
  KnownTensors* known = nullptr;
  size_t first_known = 0;  ///< the number there of its first tensor
};

/// A list whose tensors are checked for memory that they share.
inline NamedList written(const char* name, at::TensorList tensors) {
  NamedList list{name, tensors};
  list.written = true;
  return list;
}

/// The parts of a call's lists for the flat kernels, and for ATen.
struct Work {
  Plan plan;
  std::vector<int64_t> rest;  ///< positions whose tensors no kernel supports
};

/// Throws unless all lists have the length of the first, and every tensor is dense, has memory,
/// is of a floating dtype, on the kernels' device and sized like the tensor at its position in the
/// first list. A written tensor's elements are distinct; it may be a tensor of its position in
/// another list, but not share part of its memory. Written lists come last.
///
/// Positions where a list that is not optional has an undefined or empty tensor are left out. The
/// plan's address of a missing optional tensor is null. The kernels get float32,
/// float16 and bfloat16 tensors that are dense and of the same strides; float64, other layouts, and
/// everything if the kernels are not usable, is the rest.
Work build_plan(const char* op, c10::ArrayRef<NamedList> lists, const DeviceKernels& kernels);

/// The first tensor that is defined; if none is, one without elements on the CPU.
const at::Tensor& first_defined(at::TensorList tensors);

/// first_defined() of the list `name`, which `op` is dispatched by. Throws a TypeError unless it
/// has memory or is meta.
const at::Tensor& dispatched_by(const char* op, const char* name, at::TensorList tensors);

/// Pointers into `found_inf`, if defined, and `found_inf_per_tensor`, if given.
Flags make_flags(const at::Tensor& found_inf, const std::optional<at::Tensor>& per_tensor);

}  // namespace torchamp
