// The lists of tensors that the benchmarks run on.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>

#include <vector>

namespace torchamp::bench {

using Shapes = std::vector<std::vector<int64_t>>;

/// GPT-2 "small": 148 tensors, 124,439,808 parameters.
inline Shapes gpt2_124m() {
  constexpr int64_t kWidth = 768;
  Shapes shapes = {{50257, kWidth}, {1024, kWidth}};
  for (int layer = 0; layer < 12; ++layer) {
    const Shapes block = {
        {kWidth}, {kWidth}, {kWidth, 3 * kWidth}, {3 * kWidth}, {kWidth, kWidth},     {kWidth},
        {kWidth}, {kWidth}, {kWidth, 4 * kWidth}, {4 * kWidth}, {4 * kWidth, kWidth}, {kWidth}};
    shapes.insert(shapes.end(), block.begin(), block.end());
  }
  shapes.push_back({kWidth});
  shapes.push_back({kWidth});
  return shapes;
}

inline Shapes equal(int64_t tensors, int64_t elements) {
  return Shapes(tensors, {elements});
}

/// Random tensors of one dtype; not zeros, because arithmetic on zeros can be cheaper.
inline std::vector<at::Tensor> random(const Shapes& shapes, at::ScalarType dtype) {
  std::vector<at::Tensor> tensors;
  for (const auto& shape : shapes) tensors.push_back(at::randn(shape, at::kFloat).to(dtype));
  return tensors;
}

inline int64_t elements(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const auto& tensor : tensors) sum += tensor.numel();
  return sum;
}

}  // namespace torchamp::bench
