// From lists of tensors to what the kernels walk.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "plan.h"

namespace torchamp {

/// What of a call's lists the flat kernels take, and what is left to ATen.
struct Work {
  Plan plan;
  std::vector<int64_t>
      rest;  ///< positions of float64 tensors and of tensors that are not dense in the same order
};

/// `lists` are the op's lists, all of one length. Positions where a list has an undefined or empty
/// tensor are in neither.
Work split_work(const std::vector<at::TensorList>& lists);

/// Pointers into `found_inf` and, if given, `found_inf_per_tensor`.
Flags make_flags(const at::Tensor& found_inf, const std::optional<at::Tensor>& per_tensor);

}  // namespace torchamp
