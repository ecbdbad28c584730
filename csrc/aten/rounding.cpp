#include "aten/rounding.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/randint_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace torchamp::aten {
namespace {

using at::Tensor;

constexpr int64_t kMagnitude = 0x7fffffff;
constexpr int64_t kInfinity = 0x7f800000;

Tensor bits_of(const Tensor& floats) {
  return floats.view(at::kInt);
}

Tensor from_bits(const Tensor& bits) {
  return bits.view(at::kFloat);
}

/// The bits of the exponents of float16 values, those of 2^-14 for subnormals.
Tensor exponents_of(const Tensor& rounded) {
  return bits_of(rounded).bitwise_right_shift(23).bitwise_and(0xff).clamp_min(113);
}

Tensor power_of_two(const Tensor& exponents) {
  return from_bits(exponents.bitwise_left_shift(23));
}

Tensor low_bits_of_bfloat16(const Tensor& values, const Tensor& rounded) {
  const Tensor magnitude = bits_of(values).bitwise_and(kMagnitude);
  const Tensor counts = magnitude.sub(bits_of(rounded).bitwise_and(kMagnitude));
  return at::where(values.isnan(), at::zeros_like(counts), counts.clamp_max(0x7fff));
}

Tensor reconstructed_bfloat16(const Tensor& rounded, const Tensor& counts) {
  const Tensor bits = bits_of(rounded), magnitude = bits.bitwise_and(kMagnitude);
  const Tensor sum = magnitude.add(counts).clamp_min(0);
  const Tensor is_special = magnitude.gt(kInfinity).logical_or(sum.gt(kInfinity));
  const Tensor sign = bits.sub(magnitude);
  return from_bits(sign.add(at::where(is_special, magnitude, sum)));
}

Tensor low_bits_of_float16(const Tensor& values, const Tensor& rounded) {
  const Tensor per_unit = power_of_two(exponents_of(rounded).neg().add(279));
  const Tensor counts = values.sub(rounded).mul(per_unit).round();
  return at::where(at::isfinite(rounded), counts, at::zeros_like(counts));
}

Tensor reconstructed_float16(const Tensor& rounded, const Tensor& counts) {
  const Tensor unit = power_of_two(exponents_of(rounded).sub(25));
  const Tensor adds = at::isfinite(rounded).logical_and(counts.ne(0));
  return at::where(adds, rounded.add(counts.to(at::kFloat).mul(unit)), rounded);
}

}  // namespace

Tensor round_stochastically(const Tensor& values) {
  const Tensor bits = bits_of(values);
  const Tensor up = bits.add(at::randint_like(bits, 0x10000)).bitwise_and(-0x10000);
  return at::where(at::isfinite(values), from_bits(up), values).to(at::kBFloat16);
}

Tensor low_bits_of(const Tensor& values, const Tensor& high) {
  const bool is_half = high.scalar_type() == at::kHalf;
  const auto low_bits = is_half ? low_bits_of_float16 : low_bits_of_bfloat16;
  return low_bits(values, high.to(at::kFloat)).to(at::kShort);
}

Tensor reconstructed(const Tensor& high, const Tensor& low_bits) {
  const bool is_half = high.scalar_type() == at::kHalf;
  const auto reconstruct = is_half ? reconstructed_float16 : reconstructed_bfloat16;
  return reconstruct(high.to(at::kFloat), low_bits.to(at::kInt));
}

}  // namespace torchamp::aten
