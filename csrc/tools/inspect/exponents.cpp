#include "inspect/exponents.h"

#include <ATen/ops/bincount.h>
#include <ATen/ops/frexp.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace torchamp {
namespace inspect {

double Format::largest() const {
  return std::ldexp(2 - std::ldexp(1, spacing), top);
}

ExponentCounts exponents_of(const at::Tensor& tensor) {
  ExponentCounts found;
  const at::Tensor values = tensor.detach().to(at::kFloat).abs().flatten();
  const at::Tensor finite = values.masked_select(values.isfinite());
  const at::Tensor nonzero = finite.masked_select(finite > 0);
  found.not_finite = values.numel() - finite.numel();
  found.zeros = finite.numel() - nonzero.numel();
  if (nonzero.numel() == 0) return found;
  found.max_abs = nonzero.max().item().toDouble();
  // frexp's mantissa is in [0.5, 1).
  const at::Tensor exponents = std::get<1>(at::frexp(nonzero)) - 1 - ExponentCounts::kLowest;
  const auto bins = static_cast<int64_t>(found.counts.size());
  const at::Tensor counts = at::bincount(exponents.to(at::kLong), {}, bins).cpu();
  std::copy_n(counts.const_data_ptr<int64_t>(), bins, found.counts.begin());
  return found;
}

double share_lost(const ExponentCounts& values, const Format& format, int scale) {
  return values.share_below(format.subnormal - 1 - scale);
}

bool overflows(const ExponentCounts& values, const Format& format, int scale) {
  return std::ldexp(values.max_abs, scale) > format.largest();
}

}  // namespace inspect

ExponentCounts& ExponentCounts::operator+=(const ExponentCounts& other) {
  for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  zeros += other.zeros;
  not_finite += other.not_finite;
  max_abs = std::max(max_abs, other.max_abs);
  return *this;
}

int64_t ExponentCounts::nonzero() const {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

double ExponentCounts::share_below(int exponent) const {
  const int64_t all = nonzero();
  if (all == 0) return 0;
  const int end = std::clamp(exponent - kLowest, 0, static_cast<int>(counts.size()));
  const int64_t below = std::accumulate(counts.begin(), counts.begin() + end, int64_t{0});
  return static_cast<double>(below) / static_cast<double>(all);
}

}  // namespace torchamp
