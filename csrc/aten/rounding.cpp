#include "aten/rounding.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>

#include "math/rounding.h"

namespace torchamp::aten {
namespace {

using at::Tensor;

constexpr int64_t kUint32 = 0xffffffff;

/// A hash of numbers of 32 bits in int64.
Tensor mixed(const Tensor& number) {
  const auto shaken = [](const Tensor& x, int64_t shift) {
    return x.bitwise_xor(x.bitwise_right_shift(shift));
  };
  const Tensor x = shaken(number, 16).mul(0x85ebca6b).bitwise_and(kUint32);
  return shaken(shaken(x, 13).mul(0xc2b2ae35).bitwise_and(kUint32), 16);
}

Tensor element_numbers(const Tensor& target) {
  const Tensor numbers = at::arange(target.numel(), target.options().dtype(at::kLong));
  return target.is_non_overlapping_and_dense()
             ? numbers.as_strided(target.sizes(), target.strides())
             : numbers.view(target.sizes());
}

Tensor noise(const Tensor& target, const NoiseOf& of) {
  const int64_t place = torchamp::mixed(static_cast<uint32>(of.position));
  const Tensor step = of.step.to(at::kFloat).view(at::kInt).to(at::kLong).bitwise_and(kUint32);
  const Tensor number = element_numbers(target);
  const Tensor stream = mixed(number.bitwise_right_shift(29));
  const Tensor key = mixed(step.bitwise_xor(place)).bitwise_xor(stream);
  const Tensor element = number.mul(8).add(of.list).bitwise_and(kUint32);
  return mixed(key.bitwise_xor(element)).bitwise_right_shift(16).to(at::kInt);
}

}  // namespace

Tensor round_stochastically(const Tensor& values, const Tensor& target, const NoiseOf& of) {
  const Tensor up = values.view(at::kInt).add(noise(target, of)).bitwise_and(-0x10000);
  return at::where(at::isfinite(values), up.view(at::kFloat), values).to(at::kBFloat16);
}

}  // namespace torchamp::aten
