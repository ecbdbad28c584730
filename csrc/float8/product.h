// Matrices in float8 and their products.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace torchamp::float8 {

/// What both dimensions of a weight are multiples of, for cuBLASLt.
constexpr int64_t kMultiple = 16;

/// A matrix [M, K] in float8, in rows of K and, transposed, in rows of M. Either may be missing.
struct Matrix {
  at::Tensor rows;     ///< [M, K]
  at::Tensor columns;  ///< [K, M rounded up to a multiple of 16]
  at::Tensor scale;    ///< float32 scalar
};

/// Casts matrices, each with a scale of its own, in two launches.
TORCHAMP_API std::vector<Matrix> cast(at::TensorList matrices, at::ScalarType dtype, bool rows,
                                      bool columns);

/// A float8 matrix in rows, and its scale.
struct Operand {
  const at::Tensor& rows;
  const at::Tensor& scale;
};

/// left · rightᵀ + bias in `dtype`, with sums in float32, for [M, K] and [N, K]. On every device it
/// takes what cuBLASLt takes of sm_89: K and N in multiples of 16, one of the two in e4m3, a bias
/// with 16-bit results alone. Throws RuntimeError for others.
TORCHAMP_API at::Tensor product(const Operand& left, const Operand& right, at::ScalarType dtype,
                                const std::optional<at::Tensor>& bias = {});

/// What this process has computed.
struct Counts {
  int64_t products, casts;  ///< casts: of matrices
};
TORCHAMP_API Counts counts();

}  // namespace torchamp::float8
