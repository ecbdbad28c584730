// Stages 4 and 6: scale the loss, update the scale.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/agreement.h>
#include <torchamp/detail/export.h>
#include <torchamp/ops.h>
#include <torchamp/opt_level.h>

#include <cstdint>
#include <iosfwd>
#include <memory>

namespace torchamp {

class BackwardReport;
class DeferredOverflow;
class ScaleSnapshot;
struct DynamicScale;
struct ReportedScale;

/// @addtogroup scale
/// @{

/// The initial scale and update rule of a LossScaler. The defaults are apex.amp's, with the floor
/// and recovery of ops::ScaleRule.
struct LossScalerOptions {
  LossScale loss_scale = LossScale("dynamic");  ///< dynamic, or a fixed factor
  double init_scale = 65536.0;  ///< initial dynamic scale, if not above rule.max_scale
  ops::ScaleRule rule;          ///< how a dynamic scale is updated
};

/// A LossScaler's state in a checkpoint.
struct ScaleState {
  double loss_scale = 1.0;     ///< fixed or dynamic
  int64_t growth_tracker = 0;  ///< clean backwards since it grew or overflowed

  /// Whether loss_scale is positive and finite in float32, and growth_tracker has 32 bits.
  TORCHAMP_API bool is_valid() const;
};

/// A loss scale, fixed or dynamic, whose state lives on the device: nothing here waits for it
/// unless noted.
///
///     auto scaled_loss = scaler.scale(loss);
///     auto inv_scale = scaler.inv_scale();  // of this backward: update() may change the scale
///     scaled_loss.backward();
///     ops::unscale(grads, grads, inv_scale, scaler.found_inf());
///     const auto found_inf = scaler.found_inf();  // the step is the caller's: skip it unless 0
///     scaler.update();                            // grows or backs off
class TORCHAMP_API LossScaler {
 public:
  /// The scale lives on `device`. Throws ValueError unless it starts positive and finite, and
  /// min_scale is between 0 and max_scale.
  explicit LossScaler(LossScalerOptions options = {}, at::Device device = at::kCPU);
  ~LossScaler();
  /// The functions of one that was moved from throw RuntimeError.
  LossScaler(LossScaler&&) noexcept;
  /// Moves as the constructor does.
  LossScaler& operator=(LossScaler&&) noexcept;

  /// Whether its scale is another one's now.
  bool was_moved_from() const { return impl_ == nullptr; }
  /// Whether update() changes the scale.
  bool dynamic() const;
  /// Whether scaling has no effect: fixed at 1.
  bool is_identity() const;

  /// loss · loss_scale in float32, of any shape, on the autograd graph. Autograd raises an error if
  /// the scale is updated before the backward. Throws TypeError unless `loss` is a floating-point
  /// tensor.
  at::Tensor scale(const at::Tensor& loss) const;
  /// The current 1 / loss_scale: a new float32 scalar that later updates do not change.
  at::Tensor inv_scale() const;

  /// float32 scalar that ops set when they meet a non-finite value: of the last finished
  /// backward, or since update().
  const at::Tensor& found_inf() const;
  /// Replaces it with a new 0.
  void clear_found_inf();
  /// Takes found_inf into account, and clears it. A fixed scale stays.
  void update();
  /// Takes another one into account: a float32 scalar on the device.
  void update(const at::Tensor& found_inf);

  /// The scale as a float32 scalar on the device.
  const at::Tensor& loss_scale_tensor() const;
  /// Reads the scale. Waits for the device.
  double loss_scale() const;
  /// Throws ValueError unless `value` is positive and finite.
  void set_loss_scale(double value);

  /// How a dynamic scale is updated, from the next update() on.
  const ops::ScaleRule& rule() const;
  /// From the next update() on.
  void set_rule(const ops::ScaleRule& rule);

  /// From the next backward on, overflows are those of all ranks.
  void set_agreement(Agreement agreement);

  /// The state for a checkpoint. Waits for the device.
  ScaleState state() const;
  /// Resumes from a state(). Throws ValueError unless it is valid.
  void load_state(const ScaleState& state);

  /// The device of scale and tracker.
  at::Device device() const;

  /// @cond
  // Called by torchamp's backwards, not by programs.

  /// The current scale, for the end of a backward: copied only if it is updated meanwhile.
  std::shared_ptr<const ScaleSnapshot> snapshot();
  /// scale() by a snapshot(): the scale may be updated before the backward.
  at::Tensor scale(const at::Tensor& loss, const ScaleSnapshot& by) const;
  /// Replaces found_inf() with that of a backward that may have updated the scale. `report`: of
  /// that backward, or null.
  void end_backward(const at::Tensor& found_inf, bool moved,
                    std::shared_ptr<const BackwardReport> report);
  /// The overflows that the next update of the scale must take into account.
  const std::shared_ptr<DeferredOverflow>& deferred() const;
  /// The report of the last finished backward; null if that was captured into a graph.
  const std::shared_ptr<const BackwardReport>& last_report() const;
  /// The scale as the host knows it, or will; neither after update() or a graph has changed it.
  const ReportedScale& reported_scale() const;
  /// The scale for an op to update. Snapshots keep their value, except `but`, whose backward ends
  /// with the update, if no graph holds it any more.
  const DynamicScale& about_to_move(const ScaleSnapshot* but = nullptr);
  /// The argument of set_agreement().
  const Agreement& agreement() const;
  /// Whether overflows are those of several ranks: not at a fixed scale, where none skips a step.
  bool agrees() const;
  /// Before the first backward, and after each load_state(), which all ranks must call: checks that
  /// they have the same state, and waits for the device. Throws RuntimeError on all ranks if not.
  void compare_ranks();
  /// @endcond

 private:
  struct Impl;
  Impl& impl() const;

  std::unique_ptr<Impl> impl_;
};

/// One line: the scale and its rule. Waits for the device, but not while a graph is captured: then
/// the scale is left out.
TORCHAMP_API std::ostream& operator<<(std::ostream& stream, const LossScaler& scaler);

/// @}

}  // namespace torchamp
