// Tensors to test with, and how to compare them.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace torchamp {

inline const std::vector<at::ScalarType> kDtypes = {at::kFloat, at::kHalf, at::kBFloat16,
                                                    at::kDouble};

/// One-dimensional, of `values`.
at::Tensor tensor_of(const std::vector<double>& values, at::ScalarType dtype = at::kFloat,
                     at::Device device = at::kCPU);
/// 0-dim.
at::Tensor scalar_of(double value, at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);
/// A found_inf_per_tensor with no flag set.
at::Tensor clear_flags(int64_t length, at::Device device);

/// Reproducible random numbers.
class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}

  /// Standard normal, in float32 rounded to `dtype`.
  at::Tensor normal(at::IntArrayRef sizes, at::ScalarType dtype, at::Device device);
  /// 0 … count - 1.
  int64_t below(int64_t count);

 private:
  std::mt19937 engine_;
};

/// The memory layout of a tensor.
enum class Layout { kContiguous, kChannelsLast, kTransposed, kEveryOther, kMisaligned };
inline constexpr int kLayouts = 5;
const char* name(Layout layout);

/// A copy of `tensor`, at least two-dimensional, with another memory layout.
at::Tensor laid_out(const at::Tensor& tensor, Layout layout);

/// The spacing of numbers just above 1.
double spacing_at_one(at::ScalarType dtype);

/// Same sizes, dtype and bits, in any layout; all NaNs are equal.
::testing::AssertionResult same_bits(const at::Tensor& got, const at::Tensor& expected);
/// Whether the tensors of each pair have the same bits.
::testing::AssertionResult same_bits(const std::vector<at::Tensor>& got,
                                     const std::vector<at::Tensor>& expected);

/// Same sizes and dtype, and at most two of `precision`'s spacings apart: those at 1, or at the
/// value where it is larger.
::testing::AssertionResult close(const at::Tensor& got, const at::Tensor& expected,
                                 at::ScalarType precision);

std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors);

}  // namespace torchamp
