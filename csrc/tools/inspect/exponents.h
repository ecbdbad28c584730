// The exponents of tensors, and what of them 16-bit formats hold.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/preflight.h>

namespace torchamp::inspect {

/// A floating format, by binary exponents.
struct Format {
  at::ScalarType type;
  const char* name;
  int subnormal;  ///< of the smallest number above 0
  int top;        ///< of the largest finite numbers
  int spacing;    ///< from 1 to the next number

  double largest() const;
};

constexpr Format kFloat16 = {at::kHalf, "float16", -24, 15, -10};
constexpr Format kBFloat16 = {at::kBFloat16, "bfloat16", -133, 127, -7};

/// Counts the exponents of a floating tensor. Waits for the device.
ExponentCounts exponents_of(const at::Tensor& tensor);

/// The share of the nonzero elements that a multiplication by 2**scale and a cast to `format`
/// leave 0.
double share_lost(const ExponentCounts& values, const Format& format, int scale);

/// Whether 2**scale times an element is beyond the largest of `format`.
bool overflows(const ExponentCounts& values, const Format& format, int scale);

}  // namespace torchamp::inspect
