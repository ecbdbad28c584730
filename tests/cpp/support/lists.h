// Lists of tensors for one call of an op: every combination of dtypes, many of layouts and sizes.
#pragma once

#include <string>
#include <vector>

#include "tensors.h"

namespace torchamp {

struct Lists {
  /// A description of each position, for messages.
  std::vector<std::string> names;
  /// lists[l][i]: list l's tensor at position i; undefined at some.
  std::vector<std::vector<at::Tensor>> lists;
  /// Whether the kernels handle position i: no float64, and the same dense memory order in all
  /// lists.
  std::vector<bool> flat;

  size_t length() const { return names.size(); }
};

/// `count` lists with matching sizes at each position.
Lists every_dtype(int count, at::Device device);

/// `count` lists as above, of `positions` random combinations, half of them without float64.
Lists mixed(int count, int64_t positions, at::Device device);

/// The narrower of `output`'s dtype and the compute dtype of an op on `inputs`.
at::ScalarType precision_of(std::initializer_list<at::Tensor> inputs, const at::Tensor& output);

/// Whether TORCHAMP_KERNELS selects ATen for every position.
bool kernels_are_off();

}  // namespace torchamp
