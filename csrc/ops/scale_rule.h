// How a loss scale moves, on its way to the kernels.
#pragma once

#include <torchamp/ops.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "math/update_scale.h"

namespace torchamp {

using RuleValues = std::array<double, 6>;

/// The fields of `rule` in their order; scales stay where they and their inverses are normal
/// floats.
inline RuleValues values_of(const ops::ScaleUpdate& rule) {
  return {rule.growth_factor,
          rule.backoff_factor,
          static_cast<double>(rule.growth_interval),
          std::max<double>(rule.min_scale, std::numeric_limits<float>::min()),
          std::min(rule.max_scale, std::ldexp(1.0, 127)),
          static_cast<double>(rule.hysteresis)};
}

inline ScaleRule to_rule(at::ArrayRef<double> values) {
  const auto count = [](double value) {
    return static_cast<int32>(std::min<double>(value, std::numeric_limits<int32>::max()));
  };
  return {static_cast<float>(values[0]), static_cast<float>(values[1]), count(values[2]),
          static_cast<float>(values[3]), static_cast<float>(values[4]), count(values[5])};
}

}  // namespace torchamp
