// Lists of tensors for one call of an op: every combination of dtypes, many of layouts and sizes.
#pragma once

#include <string>
#include <vector>

#include "tensors.h"

namespace torchamp {

struct Lists {
  /// What stands at each position, for messages.
  std::vector<std::string> names;
  /// lists[l][i]: list l's tensor at position i; undefined at some.
  std::vector<std::vector<at::Tensor>> lists;
  /// Whether position i is for the kernels: no float64, and memory in the same dense order.
  std::vector<bool> flat;

  size_t length() const { return names.size(); }
};

/// `count` lists that agree in sizes position by position.
Lists every_dtype(int count, at::Device device);

/// `count` lists as above, of `positions` combinations at random, half of them without float64.
Lists mixed(int count, int64_t positions, at::Device device);

/// The narrower of `output`'s dtype and of what an op on `inputs` computes in.
at::ScalarType precision_of(std::initializer_list<at::Tensor> inputs, const at::Tensor& output);

/// Whether TORCHAMP_KERNELS keeps the kernels out, so that ATen does every position.
bool kernels_are_off();

}  // namespace torchamp
