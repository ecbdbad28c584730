// Stage 5: what the grads of one optimizer's parameters are, from a backward to the step.
#pragma once

#include <torchamp/detail/fused_stepper.h>
#include <torchamp/detail/master_weights.h>
#include <torchamp/loss_scaler.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace torchamp {

class UnscalePass;

/// The grads of MasterWeights' parameters.
///
/// A backward goes: prepare_backward(), the backward, then finish_backward(), or delay_backward(),
/// or cancel_backward(), which undoes the first.
///
/// A step uses the sum of what the backwards since the last zeroing or step contributed, each
/// divided by the scale under which it was made. Between backwards a parameter's contributions are
///
/// - materialized: unscaled, in the master's grad, or the parameter's own where it is its own
///   master;
/// - delayed: in the parameter's grad, scaled by one snapshot of one loss's scale;
/// - deferred: in the parameter's grad, checked, for a fused step to unscale;
///
/// and none of it is left once the program drops the parameter's grad.
class TORCHAMP_API MasterGrads {
 public:
  /// `weights` must outlive it.
  explicit MasterGrads(MasterWeights& weights) : weights_(weights) {}
  MasterGrads(const MasterGrads&) = delete;
  MasterGrads& operator=(const MasterGrads&) = delete;

  /// Makes room for parameters that were tracked since.
  void resize();

  /// The scale of delayed grads.
  struct Scaled {
    std::shared_ptr<const ScaleSnapshot> by;     ///< as it was when the loss was multiplied
    std::shared_ptr<DeferredOverflow> overflow;  ///< records theirs; null for a fixed scale
  };

  /// Opens a backward: sets the model's grads aside, so that it starts from none.
  void prepare_backward();
  /// Puts the grads back as prepare_backward() found them; nothing if it was not called.
  void cancel_backward();
  /// Ends a backward whose grads stay scaled: they add to those that are delayed already, which
  /// must have the same scale. finish_backward() unscales all of them.
  void delay_backward(Scaled scaled);
  /// The scale of delayed grads; null where none are delayed.
  const Scaled* delayed() const { return delayed_ ? &delayed_->scaled : nullptr; }
  /// Unscales the model's grads into the masters' grads, adding to what earlier backwards left
  /// there. With no separate master, the parameter's own grad is unscaled in place. `loss_scale`:
  /// float32 scalar on the device, of this backward. `found_before`: float32 scalar on the device,
  /// counts as found unless 0 or undefined. `moved`: moves by what is found; may hold the
  /// loss_scale itself. Returns a new float32 scalar on the device: 1 if any is not finite or
  /// found_before is not 0, else 0.
  at::Tensor finish_backward(const at::Tensor& loss_scale, const at::Tensor& found_before = {},
                             const DynamicScale* moved = nullptr);
  /// What the host will learn of the last backward; null if that went into a graph.
  const std::shared_ptr<const BackwardReport>& last_report() const { return last_report_; }
  /// Forgets contributions whose grads the program has dropped from the model. Returns whether
  /// there were some, and none are left.
  bool drop_zeroed();
  /// Gives up the grads that a step has refused, of parameters that are their own masters, and that
  /// nobody has zeroed since. `found_inf`: float32 scalar on the device, not 0 if it was refused.
  void drop_refused(const at::Tensor& found_inf);

  /// Whether finish_backward() may defer master grads, where a fused step can do without: it then
  /// only checks the model's grads, and step() unscales them. Off to begin with; turning it off
  /// materializes them, and reconstructs split masters.
  void set_lazy(bool lazy);
  /// What set_lazy() said last.
  bool lazy() const { return lazy_; }
  /// Whether the last backward's master grads are deferred.
  bool is_deferred() const { return deferred_.factor.defined(); }
  /// Makes deferred master grads.
  void materialize();

  /// The grads that are materialized, sparse ones' values.
  std::vector<at::Tensor> materialized() const;
  /// The norm of the deferred grads, still scaled, a float32 scalar on the device; undefined where
  /// there are none. From the first call on, the checks of lazy backwards compute it in their pass.
  at::Tensor norm_of_deferred();
  /// What deferred grads are multiplied by: the float32 inverse of their scale, clipped.
  const at::Tensor& deferred_factor() const { return deferred_.factor; }
  /// Replaces it.
  void set_deferred_factor(const at::Tensor& factor) { deferred_.factor = factor; }
  /// Steps by `stepper`, whose parameters are among the masters, and writes the model's, in one
  /// pass. `skip`: float32 scalar on the device, unless 0 nothing changes; undefined: 0.
  /// Grads stay, for other steppers of the same optimizer; drop_master_grads() ends the step.
  void step(FusedStepper& stepper, const at::Tensor& skip);

  /// Which parameters' grads were not finite in any backward since this was cleared or grads were
  /// dropped: uint8, one element a parameter, on the device; undefined before the first backward.
  const at::Tensor& found_inf_per_param() const { return found_inf_per_param_; }
  /// Forgets which were not finite.
  void clear_found_inf_per_param() { found_inf_per_param_.reset(); }
  /// The same as indices into MasterWeights::model_params(). Waits for the device.
  std::vector<int64_t> nonfinite_params() const;

  /// Drops the grads of some masters, so that a step passes them by. What the model keeps of them
  /// shows whether it is zeroed.
  void refuse(const std::vector<at::Tensor>& master_params);
  /// Drops the grads of masters, and leaves alone those of parameters that are their own master.
  void drop_master_grads();
  /// As torch's zero_grad, for the model's grads (the optimizer does the masters'). What is set
  /// aside of them is dropped.
  void zero_model_grads(bool set_to_none);

 private:
  struct Delayed {
    Scaled scaled;
    std::vector<bool> is_scaled;     ///< whether the parameter's grad is
    std::vector<at::Tensor> before;  ///< where it is, of its own masters: what was materialized
  };

  /// The model's grads whose master grads are deferred.
  struct Deferred {
    explicit Deferred(size_t count = 0) : grads(count), versions(count) {}

    at::Tensor factor;  ///< that unscales and clips them; undefined where there are none
    at::Tensor norm;    ///< of the scaled grads, if it was asked for in time
    std::vector<at::Tensor> grads;
    std::vector<uint32_t> versions;
  };

  bool has_grad(size_t i) const { return weights_.model_params()[i].grad().defined(); }
  bool was_zeroed(size_t i) const { return has_contributed_[i] && !has_grad(i); }
  std::vector<at::Tensor> collect();
  void note_contributions(const std::vector<at::Tensor>& before);
  bool can_defer() const;
  void defer(size_t i, UnscalePass& pass);
  at::Tensor route(size_t i, const at::Tensor& materialized, UnscalePass& pass);
  at::Tensor run(const UnscalePass& pass, const at::Tensor& loss_scale,
                 const at::Tensor& found_before, const DynamicScale* moved, bool defers);
  at::Tensor take_overflow_flags(at::Device device);
  void forget_scaled();
  void check_deferred_unchanged() const;

  MasterWeights& weights_;
  std::optional<std::vector<at::Tensor>>
      open_;  ///< the model's grads as the open backward found them
  std::optional<Delayed> delayed_;
  Deferred deferred_;
  std::vector<bool> has_contributed_;  ///< a backward has left the parameter a grad
  at::Tensor found_inf_per_param_;
  std::shared_ptr<const BackwardReport> last_report_;
  at::Tensor overflow_flags_;  ///< for the passes over grads; undefined where one has failed
  bool lazy_ = false;
  bool wants_norm_ = false;
};

/// Scales the grads of `all`, materialized or deferred, so that their norm together is at most
/// `max_norm`; returns what it was, a float32 scalar on the device, which nothing waits for.
TORCHAMP_API at::Tensor clip_grad_norm(const std::vector<MasterGrads*>& all, double max_norm);

/// The same by value: each element to within ±clip_value. Makes deferred grads.
TORCHAMP_API void clip_grad_value(const std::vector<MasterGrads*>& all, double clip_value);

/// Ends a backward of `all`, whose loss `scaler` has scaled by `scaled_by`: as
/// MasterGrads::finish_backward() of each, with one found_inf for all, which is returned, and
/// becomes the scaler's together with what that has deferred. moves_scale: a dynamic scale grows or
/// backs off; else found_inf is deferred. In all one pass over the grads, and nothing waits for the
/// device.
TORCHAMP_API at::Tensor finish_backward(const std::vector<MasterGrads*>& all, LossScaler& scaler,
                                        const ScaleSnapshot& scaled_by, bool moves_scale = true);

}  // namespace torchamp
