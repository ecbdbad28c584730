// A loss scale on its device, and what backwards keep of it while it moves.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>
#include <torchamp/ops.h>

#include <memory>
#include <optional>
#include <utility>

namespace torchamp {

class BackwardReport;

/// A loss scale in the memory of its device, one element each, and how it moves.
struct DynamicScale {
  at::Tensor loss_scale;          ///< float32
  at::Tensor growth_tracker;      ///< int32: clean backwards since it grew or overflowed
  at::Tensor hysteresis_tracker;  ///< int32: overflows until it backs off
  ops::ScaleUpdate rule;          ///< how it moves
};

/// The loss scale that one backward's loss and grads bear: in the scaler's memory, and in its own
/// once the scaler's scale moves on, or when this ends before the graph that was scaled by it.
class TORCHAMP_API ScaleSnapshot {
 public:
  /// For LossScaler::snapshot().
  explicit ScaleSnapshot(const at::Tensor& loss_scale);
  ~ScaleSnapshot();
  ScaleSnapshot(const ScaleSnapshot&) = delete;
  ScaleSnapshot& operator=(const ScaleSnapshot&) = delete;

  /// float32 of one element. Autograd's count of writes to it is not the scaler's.
  const at::Tensor& loss_scale() const { return loss_scale_; }
  /// Gives it memory of its own, for the graphs that hold it, too.
  void keep();
  /// Whether it is what `scale` is now, without a write in between.
  bool is_still(const at::Tensor& scale) const {
    return loss_scale_.const_data_ptr() == scale.const_data_ptr();
  }
  /// Whether a graph holds it.
  bool is_in_graph() const { return loss_scale_.use_count() > 1; }

 private:
  at::Tensor loss_scale_;
};

/// Overflows of a loss's backwards that have not moved its scale yet.
class TORCHAMP_API DeferredOverflow {
 public:
  /// `found_inf`: float32 scalar on the device.
  void add(const at::Tensor& found_inf);
  /// The maximum of what was added, which is forgotten; undefined if there is nothing.
  at::Tensor take() { return std::exchange(found_inf_, at::Tensor()); }

 private:
  at::Tensor found_inf_;
};

/// A loss scale as the host knows it.
struct ReportedScale {
  std::optional<double> value;                   ///< where the host has set it
  std::shared_ptr<const BackwardReport> report;  ///< of the backward that moved it; or null
};

}  // namespace torchamp
