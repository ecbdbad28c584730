// The update rule of a loss scale, for the dispatcher and the kernels.
#pragma once

#include <torchamp/ops.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "math/update_scale.h"

namespace torchamp {

using PackedRule = std::array<double, 5>;

inline PackedRule packed(const ops::ScaleRule& rule) {
  return {rule.growth_factor, rule.backoff_factor, static_cast<double>(rule.growth_interval),
          rule.min_scale, rule.max_scale};
}

inline ops::ScaleRule unpacked(at::ArrayRef<double> rule) {
  return {rule[0], rule[1], static_cast<int64_t>(rule[2]), rule[3], rule[4]};
}

/// For the kernels: scales stay where they and their inverses are normal floats.
inline ScaleUpdate::Rule to_rule(const ops::ScaleRule& rule) {
  const int64_t most = std::numeric_limits<int32>::max();
  const double smallest = std::numeric_limits<float>::min(), largest = std::ldexp(1.0, 127);
  return {static_cast<float>(rule.growth_factor), static_cast<float>(rule.backoff_factor),
          static_cast<int32>(std::min(rule.growth_interval, most)),
          static_cast<float>(std::max(rule.min_scale, smallest)),
          static_cast<float>(std::min(rule.max_scale, largest))};
}

}  // namespace torchamp
