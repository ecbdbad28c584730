// Rounding: measures what rounded buffers and inputs do to a model in float32, for preflight.
#pragma once

#include <torchamp/preflight.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace torchamp::inspect {

using Initialize = std::function<detail::ModelAtLevel(const Options&)>;

/// Iterations of a model in float32 whose buffers, those that a level casts, or inputs are rounded.
/// They leave the module as it was.
class Rounding {
 public:
  Rounding(torch::nn::Module& module, const Initialize& initialize)
      : module_(module), initialize_(initialize) {}

  /// The first buffer, or the inputs, that must not be rounded as `level` does, and what keeps it
  /// in float32; "" if what ops of the forward return stays within 10 % of its norm.
  std::string imprecision(OptLevel level);

 private:
  using NamedBuffers = std::vector<std::pair<std::string, at::Tensor>>;
  /// An op of the forward: its name, and some of the elements that it returned.
  using Output = std::pair<std::string, at::Tensor>;
  class OutputCollector;

  std::vector<Output> outputs(at::ScalarType dtype, const NamedBuffers& rounded,
                              bool rounds_inputs) const;
  std::string first_imprecise(at::ScalarType dtype, const NamedBuffers& rounded,
                              bool rounds_inputs) const;

  torch::nn::Module& module_;
  const Initialize& initialize_;
  std::vector<Output> expected_;  ///< where nothing is rounded; empty until it is needed
};

}  // namespace torchamp::inspect
