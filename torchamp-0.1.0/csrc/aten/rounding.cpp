#include "aten/rounding.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/randint_like.h>
#include <ATen/ops/where.h>

namespace torchamp::aten {

at::Tensor round_stochastically(const at::Tensor& values) {
  const at::Tensor bits = values.view(at::kInt);
  const at::Tensor up = bits.add(at::randint_like(bits, 0x10000)).bitwise_and(-0x10000);
  return at::where(at::isfinite(values), up.view(at::kFloat), values).to(at::kBFloat16);
}

}  // namespace torchamp::aten
