// Stages 4 and 6: scale the loss, update the scale.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>
#include <torchamp/detail/scale_snapshot.h>
#include <torchamp/ops.h>
#include <torchamp/opt_level.h>

#include <memory>
#include <vector>

namespace torchamp {

/// @addtogroup scale
/// @{

/// How a LossScaler starts and moves. The defaults are apex.amp's.
struct LossScalerOptions {
  LossScale loss_scale = LossScale("dynamic");  ///< dynamic, or a fixed factor
  double init_scale =
      65536.0;            ///< where a dynamic scale starts, if that is not above rule.max_scale
  ops::ScaleUpdate rule;  ///< how a dynamic scale moves
};

/// What a checkpoint keeps of a LossScaler.
struct LossScalerState {
  double loss_scale = 1.0;         ///< fixed or dynamic
  int64_t growth_tracker = 0;      ///< clean backwards since it grew or overflowed
  int64_t hysteresis_tracker = 1;  ///< overflows until it backs off
};

/// A loss scale, fixed or dynamic, whose state lives on the device: nothing here waits for it, but
/// what says so.
///
///     auto scaled_loss = scaler.scale(loss);
///     auto inv_scale = scaler.inv_scale();        // of this backward: update() may move the scale
///     scaled_loss.backward();
///     ops::unscale(grads, grads, inv_scale, scaler.found_inf());
///     scaler.update();                            // grows or backs off
///     // the step is the caller's: skip it if found_inf was set
class TORCHAMP_API LossScaler {
 public:
  /// The scale lives on `device`. Throws ValueError unless it starts positive and finite.
  explicit LossScaler(LossScalerOptions options = {}, at::Device device = at::kCPU);

  /// Whether update() moves the scale.
  bool dynamic() const { return kind_.dynamic(); }
  /// Whether scaling changes nothing: fixed at 1.
  bool is_identity() const { return kind_.fixed == 1.0; }

  /// loss · loss_scale in float32, of any shape, on the autograd graph. With `by`, what snapshot()
  /// gave, the scale may move before the backward; without, autograd then refuses that. Throws
  /// TypeError unless `loss` is a floating-point tensor.
  at::Tensor scale(const at::Tensor& loss, const ScaleSnapshot* by = nullptr) const;
  /// 1 / loss_scale as it is now: a new float32 scalar that later updates do not touch.
  at::Tensor inv_scale() const;
  /// The scale as it is now, for a backward to end with: copied only if it moves meanwhile.
  std::shared_ptr<const ScaleSnapshot> snapshot();

  /// float32 scalar that ops set when they meet a non-finite value: of the last backward that was
  /// ended, or since clear_found_inf(), which is to be called before ops look for one.
  const at::Tensor& found_inf() const { return found_inf_; }
  /// Puts a new 0 in its place.
  void clear_found_inf();
  /// Puts `found_inf` in its place, a float32 scalar on the device, after a backward that may have
  /// moved the scale and is reported by `report`, unless that is null.
  void end_backward(const at::Tensor& found_inf, bool moved,
                    std::shared_ptr<const BackwardReport> report);
  /// What the next backward that moves the scale is to take into account.
  const std::shared_ptr<DeferredOverflow>& deferred() const { return deferred_; }
  /// Of the last backward that was ended; null if that went into a graph.
  const std::shared_ptr<const BackwardReport>& last_report() const { return last_report_; }
  /// The scale as the host knows it, or will; neither where it was moved by update() or in a graph.
  const ReportedScale& reported_scale() const { return reported_scale_; }
  /// Takes found_inf into account. A fixed scale stays.
  void update();
  /// The scale for an op to move: its snapshots keep theirs, but `but`, whose backward ends
  /// with the move, if no graph holds that any more.
  const DynamicScale& about_to_move(const ScaleSnapshot* but = nullptr);

  /// The scale as a float32 scalar on the device.
  const at::Tensor& loss_scale_tensor() const { return scale_.loss_scale; }
  /// Reads the scale. Waits for the device.
  double loss_scale() const;
  /// Throws ValueError unless `value` is positive and finite.
  void set_loss_scale(double value);

  /// How a dynamic scale moves, from the next update() on.
  const ops::ScaleUpdate& rule() const { return scale_.rule; }
  /// From the next update() on.
  void set_rule(const ops::ScaleUpdate& rule) { scale_.rule = rule; }

  /// What a checkpoint keeps. Waits for the device.
  LossScalerState state() const;
  /// Goes on from what state() gave. Throws ValueError unless its scale is positive and finite.
  void load_state(const LossScalerState& state);

  /// Where scale and trackers live.
  at::Device device() const { return scale_.loss_scale.device(); }

 private:
  LossScale kind_;  ///< dynamic, or the fixed factor
  DynamicScale scale_;
  at::Tensor found_inf_;
  std::shared_ptr<DeferredOverflow> deferred_ = std::make_shared<DeferredOverflow>();
  std::shared_ptr<const BackwardReport> last_report_;
  ReportedScale reported_scale_;
  std::vector<std::weak_ptr<ScaleSnapshot>> snapshots_;
};

/// @}

}  // namespace torchamp
