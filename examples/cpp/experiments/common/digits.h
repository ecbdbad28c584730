// The handwritten digits of examples/data.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

struct Digits {
  torch::Tensor images;  ///< float32 [n, 1, 8, 8], 0 … 1
  torch::Tensor labels;  ///< int64 [n]
};

struct Split {
  Digits train;
  Digits test;
};

constexpr int64_t kPixels = 64;
constexpr int64_t kMaxPixel = 16;
constexpr int64_t kTestEvery = 5;

inline std::vector<int64_t> read_integers(const std::string& path) {
  std::ifstream file(path);
  TORCH_CHECK(file, "expected --data to name a readable file, got ", path);
  std::vector<int64_t> values;
  for (int64_t value; file >> value; file.ignore(1)) values.push_back(value);
  return values;
}

inline Digits select(const torch::Tensor& table, const torch::Tensor& rows, torch::Device device) {
  const torch::Tensor selected = table.index_select(0, rows);
  const torch::Tensor pixels = selected.narrow(1, 0, kPixels).reshape({-1, 1, 8, 8});
  return {pixels.to(torch::kFloat).div(kMaxPixel).to(device),
          selected.select(1, kPixels).to(device)};
}

/// Every fifth row is for testing, the others for training.
inline Split load_digits(const std::string& path, torch::Device device) {
  const std::vector<int64_t> values = read_integers(path);
  const torch::Tensor table = torch::tensor(values).reshape({-1, kPixels + 1});
  const torch::Tensor tests = torch::arange(table.size(0)).remainder(kTestEvery).eq(0);
  const auto rows_where = [](const torch::Tensor& mask) { return mask.nonzero().flatten(); };
  return {select(table, rows_where(tests.logical_not()), device),
          select(table, rows_where(tests), device)};
}

/// The digits of these rows, int64 [m].
inline Digits take(const Digits& digits, const torch::Tensor& rows) {
  const torch::Tensor index = rows.to(digits.labels.device());
  return {digits.images.index_select(0, index), digits.labels.index_select(0, index)};
}
