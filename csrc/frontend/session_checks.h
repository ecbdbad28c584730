// What both front ends check of the parameters that initialize is given, and say about them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>
#include <torchamp/opt_level.h>

#include <string>
#include <utility>
#include <vector>

namespace torchamp {

/// The parameters of the models and optimizers of one initialize, before it changes anything.
struct TORCHAMP_API GivenParams {
  using Named = std::vector<std::pair<std::string, at::Tensor>>;

  std::vector<Named> models;
  std::vector<std::vector<at::Tensor>> optimizers;
  std::vector<at::Tensor> cast;  ///< those of models that get another dtype
  Properties properties;
  std::vector<size_t> rounding;  ///< the optimizers with stochastic rounding

  /// Throws ValueError where an optimizer has a parameter twice, where two have one that gets a
  /// master, and where no optimizer has a parameter of a model; TypeError for a complex parameter
  /// whose grad would be unscaled.
  void check() const;
  /// What initialize warns of.
  std::vector<std::string> warnings() const;
  /// The optimizers' device; without parameters in them, that of the first model parameter, else
  /// the CPU. Throws RuntimeError for several.
  at::Device device() const;
  /// The parameters that get a master before they are cast, once each.
  std::vector<at::Tensor> mastered() const;
  /// A line on the masters of frozen parameters; "" if there are none.
  std::string frozen_masters() const;
};

/// A parameter's name, with the model's number if there are several; empty if no model has it.
std::string name_of(const at::Tensor& param, const std::vector<GivenParams::Named>& models);

/// A line on the buffers, by name, that a cast to `dtype` rounds; "" if there are none.
TORCHAMP_API std::string rounded_buffers(const std::vector<std::string>& names,
                                         at::ScalarType dtype);

}  // namespace torchamp
