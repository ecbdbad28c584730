// Which linears are slower in float8, each by itself: for preflight.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/preflight.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "inspect/rounding.h"

namespace torchamp::inspect {

/// Milliseconds of a forward and backward of one linear with a weight of that shape, whose input
/// has so many rows; empty if it throws.
std::optional<double> time_linear(const at::Tensor& weight, int64_t rows, const Options& options);

/// The sentences of a note on them, after a space; "" where there are none. Leaves the module as it
/// was. time: called once for each shape and format.
std::string losing_linears(torch::nn::Module& module, const Initialize& initialize,
                           const std::function<decltype(time_linear)>& time = time_linear);

}  // namespace torchamp::inspect
