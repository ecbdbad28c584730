// An option's columns in a row of fused_step's hyperparameters.
#pragma once

#include <torchamp/optim/fused_options.h>

#include <optional>

namespace torchamp::optim {

using Limit = std::optional<double>;

/// Writes an option's columns from `column` on; returns where the next ones begin.
inline double* put(double value, double* column) {
  *column = value;
  return column + 1;
}

inline double* put(const Betas& betas, double* column) {
  return put(std::get<1>(betas), put(std::get<0>(betas), column));
}

inline double* put(const Limit& limit, double* column) {
  return put(limit.value_or(0.0), column);
}

}  // namespace torchamp::optim
