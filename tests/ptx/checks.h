// Comparisons for the tests of the ops.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "tensors.h"

namespace kernel_tests {

/// The overflow flags of an op, with room for the positions of plan_of().
struct Report {
  explicit Report(std::size_t tensors) : per_tensor(2 * tensors, 0) {}

  torchamp::Flags flags() { return {&found_inf, per_tensor.data()}; }

  float found_inf = 0.0f;
  std::vector<uint8> per_tensor;
};

inline void expect_same(const Report& got, const Report& expected) {
  EXPECT_EQ(got.found_inf, expected.found_inf);
  EXPECT_EQ(got.per_tensor, expected.per_tensor);
}

/// Sets the flags of tensor number `tensor`.
inline void raise(Report& report, std::size_t tensor) {
  report.found_inf = 1.0f;
  report.per_tensor[2 * tensor] = 1;
}

/// Equal bit for bit, except that all NaNs are equal.
inline void expect_same(const TensorList& got, const TensorList& expected) {
  for (std::size_t t = 0; t < got.size(); ++t) {
    for (int64 i = 0; i < got[t].count(); ++i) {
      const float a = got[t][i], b = expected[t][i];
      if (std::isnan(a) && std::isnan(b)) continue;
      ASSERT_EQ(torchamp::float_to_bits(a), torchamp::float_to_bits(b))
          << "tensor " << t << " of " << got[t].count() << ", element " << i << ": got " << a
          << ", expected " << b;
    }
  }
}

inline bool is_low(DType dtype) {
  return dtype != DType::kFloat32;
}

/// Stores an oracle's result; returns whether it is an overflow.
inline bool store(Tensor& tensor, int64 i, float value) {
  tensor.set(i, value);
  return is_low(tensor.dtype()) && torchamp::is_nonfinite(tensor[i]);
}

}  // namespace kernel_tests
