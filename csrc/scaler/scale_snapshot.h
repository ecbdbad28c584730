// The snapshots that backwards keep of a loss scale.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <memory>
#include <optional>
#include <utility>

namespace torchamp {

class BackwardReport;

/// The loss scale of one backward's loss and grads: in the scaler's memory, and copied to its own
/// when the scaler's scale is updated, or when this is destroyed before the graph that it scaled.
class TORCHAMP_API ScaleSnapshot {
 public:
  /// For LossScaler::snapshot().
  explicit ScaleSnapshot(const at::Tensor& loss_scale);
  ~ScaleSnapshot();
  ScaleSnapshot(const ScaleSnapshot&) = delete;
  ScaleSnapshot& operator=(const ScaleSnapshot&) = delete;

  /// float32 of one element. Its version counter is not the scaler's.
  const at::Tensor& loss_scale() const { return loss_scale_; }
  /// Copies it to its own memory, also for the graphs that hold it.
  void keep();
  /// Whether it is the current `scale`, without a write in between.
  bool is_still(const at::Tensor& scale) const {
    return loss_scale_.const_data_ptr() == scale.const_data_ptr();
  }
  /// Whether a graph holds it.
  bool is_in_graph() const { return loss_scale_.use_count() > 1; }

 private:
  at::Tensor loss_scale_;
};

/// Overflows of a loss's backwards that its scale does not reflect yet.
class TORCHAMP_API DeferredOverflow {
 public:
  /// `found_inf`: float32 scalar on the device.
  void add(const at::Tensor& found_inf);
  /// Returns the maximum of what was added, and clears it; undefined if there is nothing.
  at::Tensor take() { return std::exchange(found_inf_, at::Tensor()); }

 private:
  at::Tensor found_inf_;
};

/// A loss scale as the host knows it.
struct ReportedScale {
  std::optional<double> value;                   ///< if the host has set it
  std::shared_ptr<const BackwardReport> report;  ///< of the backward that updated it; or null
};

}  // namespace torchamp
