// The hyperparameters of a FusedStepper's groups.
#pragma once

#include <torchamp/fused_step.h>

#include <array>
#include <vector>

namespace torchamp {

/// A row per group, and the learning rates that are tensors.
class TORCHAMP_API StepHyper {
 public:
  /// The columns of fused_step, the rest zeros.
  using Row = std::array<double, kHyperparameters>;

  /// Discards the learning rates that set_lr() has set.
  void set(const std::vector<Row>& rows);
  /// A scalar on `device` is read when a step runs; one on the CPU, for another device, now.
  void set_lr(int64_t group, const at::Tensor& lr, at::Device device);
  /// Whether some group's is not 0.
  bool has(size_t column) const;

  /// Float64 [groups, kHyperparameters], on the CPU.
  const at::Tensor& rows() const { return tensor_; }
  /// As in StepScalars.
  const std::vector<at::Tensor>& lrs() const { return lrs_; }

 private:
  std::vector<Row> rows_;
  at::Tensor tensor_;  ///< of rows_
  std::vector<at::Tensor> lrs_;
};

}  // namespace torchamp
