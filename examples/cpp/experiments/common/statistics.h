// Statistics of a list of numbers that is not empty.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

inline double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// As Python's statistics.quantiles gives it; `share` is 0.5 for the median.
inline double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double last = static_cast<double>(values.size() - 1);
  const double place = std::clamp(share * static_cast<double>(values.size() + 1) - 1, 0.0, last);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

inline double median(const std::vector<double>& values) {
  return quantile(values, 0.5);
}
