#pragma once

#include <torch/csrc/utils/pybind.h>
#include <torchamp/opt_level.h>

#include <string>
#include <variant>

namespace torchamp::python {

/// A loss scale as Python spells it: a number, or text that LossScale understands.
using LossScaleArgument = std::variant<double, std::string>;

inline LossScale to_loss_scale(const LossScaleArgument& argument) {
  return std::visit([](const auto& value) { return LossScale(value); }, argument);
}

}  // namespace torchamp::python
