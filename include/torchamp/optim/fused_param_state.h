// A fused optimizer's state of a parameter.
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
/// "step" is the float32 count of its steps; then the algorithm's states, under LibTorch's names:
/// "exp_avg", "exp_avg_sq", "momentum_buffer"; and NovoGrad's "norm_average". All are on the
/// parameter's device, and steps write to them. Moments are float32, or float64 for float64
/// parameters.
class TORCHAMP_API FusedParamState
    : public torch::optim::OptimizerCloneableParamState<FusedParamState> {
 public:
  /// Whether the state of that name is one number rather than a tensor of the parameter's sizes.
  static bool is_scalar(const std::string& name);

  /// By name.
  const std::map<std::string, at::Tensor>& tensors() const { return tensors_; }
  /// Undefined if there is none of that name.
  at::Tensor get(const std::string& name) const;
  /// Sets the state of that name to `tensor`.
  void set(const std::string& name, at::Tensor tensor) { tensors_[name] = std::move(tensor); }

  /// Loads a file's entries of the names above.
  void serialize(torch::serialize::InputArchive& archive) override;
  /// Writes what LibTorch's optimizer of the same algorithm reads. Waits for the device.
  void serialize(torch::serialize::OutputArchive& archive) const override;

 private:
  std::map<std::string, at::Tensor> tensors_;
};

/// @}

}  // namespace torchamp::optim
