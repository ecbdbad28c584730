// What a fused optimizer keeps for a parameter.
#pragma once

#include <torch/optim/optimizer.h>
#include <torchamp/detail/export.h>

#include <map>
#include <string>
#include <utility>

namespace torchamp::optim {
/// @addtogroup fused
/// @{

/// A parameter's entry in `optimizer.state()`, from its first grad on.
///
/// "step" is the float32 count of its steps; then what the algorithm keeps, under LibTorch's names:
/// "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum"; and NovoGrad's
/// "norm_average". All are on the parameter's device and what steps write; averages are float32,
/// or float64 for float64 parameters.
class TORCHAMP_API FusedParamState
    : public torch::optim::OptimizerCloneableParamState<FusedParamState> {
 public:
  /// Whether what has that name is one number rather than a tensor of the parameter's sizes.
  static bool is_scalar(const std::string& name);

  /// By their names.
  const std::map<std::string, at::Tensor>& tensors() const { return tensors_; }
  /// Undefined where there is none of that name.
  at::Tensor get(const std::string& name) const;
  /// Puts `tensor` in the place of what has that name.
  void set(const std::string& name, at::Tensor tensor) { tensors_[name] = std::move(tensor); }

  /// Takes over what a file holds under the names above.
  void serialize(torch::serialize::InputArchive& archive) override;
  /// Writes what LibTorch's optimizer of the same algorithm reads. Waits for the device.
  void serialize(torch::serialize::OutputArchive& archive) const override;

 private:
  std::map<std::string, at::Tensor> tensors_;
};

/// @}

}  // namespace torchamp::optim
