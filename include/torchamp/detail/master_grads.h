// Stage 5: the grads of one optimizer's parameters, from a backward to the step.
#pragma once

#include <torchamp/detail/fused_stepper.h>
#include <torchamp/detail/master_weights.h>
#include <torchamp/loss_scaler.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

namespace torchamp {

class UnscalePass;
struct BackwardEnd;

/// Tensors by their identity.
using TensorSet = std::unordered_set<const c10::TensorImpl*>;

/// The grads of MasterWeights' parameters.
///
/// The order of calls: prepare_backward(), the backward, then finish_backward(), delay_backward()
/// or cancel_backward(), which undoes prepare_backward().
///
/// A step uses the sum of what the backwards since the last zeroing or step contributed, each
/// divided by the scale of its backward. Between backwards a parameter's contributions are
///
/// - materialized: unscaled, in the master's grad, or in the parameter's grad if it is its own
///   master;
/// - delayed: in the parameter's grad, scaled by one snapshot of one loss's scale;
/// - deferred: in the parameter's grad, checked, for a fused step to unscale;
///
/// They are dropped when the program drops the parameter's grad.
class TORCHAMP_API MasterGrads {
 public:
  /// `weights` must outlive it.
  explicit MasterGrads(MasterWeights& weights) : weights_(weights) {}
  MasterGrads(const MasterGrads&) = delete;
  MasterGrads& operator=(const MasterGrads&) = delete;

  /// Adds entries for parameters that were tracked since.
  void resize();

  /// The scale of delayed grads.
  struct Scaled {
    std::shared_ptr<const ScaleSnapshot> by;  ///< at the time when the loss was scaled
    std::shared_ptr<DeferredOverflow>
        overflow;     ///< records their overflows; null for a fixed scale
    at::Tensor loss;  ///< of the last of their backwards, as for finish_backward()
  };

  /// Opens a backward: sets the model's grads aside, so that it starts without grads, but for
  /// those that are delayed.
  void prepare_backward();
  /// Instead of prepare_backward(), after the backward: the model's grads are its own.
  void take_backward();
  /// Whether the model has grads that a backward has unscaled, which another may have added to.
  bool has_finished_grads() const;
  /// Whether the open backward has given the model grads.
  bool has_new_grads() const;
  /// Restores the grads that prepare_backward() set aside; does nothing if it was not called.
  void cancel_backward();
  /// Ends a backward whose grads stay scaled: they are added to grads that are delayed already,
  /// which must have the same scale. finish_backward() unscales all of them.
  void delay_backward(Scaled scaled);
  /// The scale of delayed grads; null if none are delayed.
  const Scaled* delayed() const { return delayed_ ? &delayed_->scaled : nullptr; }
  /// Unscales the model's grads into the masters' grads, adding to those of earlier
  /// backwards. Without a separate master, the parameter's own grad is unscaled in place.
  /// `loss_scale`: float32 scalar on the device, of this backward. `found_before`: float32 scalar
  /// on the device, counts as an overflow unless 0 or undefined. `moved`: the scale to update; may
  /// hold the loss_scale itself. `loss`: the scaled one, a float32 scalar on the device, for the
  /// report; may be undefined. Returns a new float32 scalar on the device: 1 if any is not finite
  /// or found_before is not 0, else 0.
  at::Tensor finish_backward(const at::Tensor& loss_scale, const at::Tensor& found_before = {},
                             const DynamicScale* moved = nullptr, const at::Tensor& loss = {});
  /// The report of the last backward to the host; null if that was captured into a graph.
  const std::shared_ptr<const BackwardReport>& last_report() const { return last_report_; }
  /// Whether those of a master among `stepped` are.
  bool are_delayed(const TensorSet& stepped) const;
  /// Discards contributions whose grads the program has dropped from the model. Returns whether
  /// there were some, and none are left.
  bool drop_zeroed();
  /// Discards the grad of master i, but for what is delayed, if `found_inf`, a float32 scalar on
  /// the device, is not 0. It becomes undefined, or with `keeps_zeros`, and except on the CPU,
  /// zeros.
  void discard_if(const at::Tensor& found_inf, size_t i, bool keeps_zeros);

  /// Whether finish_backward() may defer master grads, if a fused step does not need them: it then
  /// only checks the model's grads, and step() unscales them. Off by default; turning it off
  /// materializes them.
  void set_lazy(bool lazy);
  /// The last argument of set_lazy().
  bool lazy() const { return lazy_; }
  /// Whether the last backward's master grads are deferred.
  bool is_deferred() const { return deferred_.factor.defined(); }
  /// Materializes deferred master grads.
  void materialize();

  /// The norm of the deferred grads, still scaled, a float32 scalar on the device; undefined if
  /// there are none. After the first call, the checks of lazy backwards compute it in their pass.
  at::Tensor norm_of_deferred();
  /// The factor of deferred grads: the float32 inverse of their scale, clipped.
  const at::Tensor& deferred_factor() const { return deferred_.factor; }
  /// Replaces it.
  void set_deferred_factor(const at::Tensor& factor) { deferred_.factor = factor; }
  /// Steps by `stepper`, whose parameters are among the masters, and writes the model's, in one
  /// pass. `skip`: float32 scalar on the device, unless 0 nothing changes; undefined: 0.
  /// Grads are kept for other steppers of the same optimizer; drop_master_grads() ends the step.
  void step(FusedStepper& stepper, const at::Tensor& skip);

  /// Which parameters' grads were not finite in any backward since this was cleared or grads were
  /// dropped: uint8, one element per parameter, on the device; undefined before the first backward.
  const at::Tensor& found_inf_per_param() const { return found_inf_per_param_; }
  /// Clears these flags.
  void clear_found_inf_per_param() { found_inf_per_param_.reset(); }
  /// The same as indices into MasterWeights::model_params(). Waits for the device.
  std::vector<int64_t> nonfinite_params() const;

  /// Whether masters among `stepped` have no grads, or parameters do that are their own masters.
  bool lacks(const TensorSet& stepped) const;
  /// Whether the program has written grads of the model that are materialized in the masters'.
  bool were_modified() const;

  /// Drops the grads of some masters, so that a step skips them. The model's grads then show
  /// whether they are zeroed.
  void refuse(const std::vector<at::Tensor>& master_params);
  /// Drops what is known of the grads of some of the model's parameters, also what the open
  /// backward has set aside, and their masters' grads. Returns whether none is left of some.
  bool drop_known(const TensorSet& model_params);
  /// Whether refuse() has dropped the grad of a parameter without a master that is not among
  /// `stepped`: then nothing shows whether that is zeroed.
  bool has_refused_besides(const TensorSet& stepped) const;
  /// Ends the refusal of masters among `stepped`, which are zeroed. `zeros`: the grads that
  /// refuse() dropped become zeros, else they stay undefined.
  void zero_refused(const TensorSet& stepped, bool zeros);
  /// Drops the grads of masters, but not those of parameters that are their own master.
  void drop_master_grads();
  /// Like torch's zero_grad, for the model's grads of masters among `stepped` (the optimizer zeroes
  /// the masters'). Drops those that are set aside.
  void zero_model_grads(bool set_to_none, const TensorSet& stepped);

 private:
  struct Delayed {
    Scaled scaled;
    std::vector<bool> is_scaled;     ///< whether the parameter's grad is
    std::vector<at::Tensor> before;  ///< if it is, of its own masters: the materialized grads
  };

  /// The model's grads whose master grads are deferred.
  struct Deferred {
    void begin(size_t count);
    void drop(size_t i);
    void clear();

    at::Tensor factor;  ///< that unscales and clips them; undefined if there are none
    at::Tensor norm;    ///< of the scaled grads, if it was requested before the backward
    std::vector<at::Tensor> grads;
    std::vector<uint32_t> versions;
  };

  bool has_grad(size_t i) const;
  std::vector<at::Tensor> collect();
  void keep_zeros(const std::vector<at::Tensor>& before);
  void note_contributions(const std::vector<at::Tensor>& before);
  bool can_defer() const;
  void defer(size_t i, UnscalePass& pass);
  at::Tensor route(size_t i, const at::Tensor& materialized, UnscalePass& pass);
  at::Tensor run(const UnscalePass& pass, const at::Tensor& loss_scale, BackwardEnd end,
                 bool defers);
  at::Tensor take_overflow_flags(at::Device device);
  void forget_scaled();
  void forget_scaled(size_t i);
  void end_scaled();
  void forget(size_t i);
  void clear_found_inf_of(const std::vector<size_t>& indices);
  void check_deferred_unchanged() const;

  MasterWeights& weights_;
  std::optional<std::vector<at::Tensor>>
      open_;  ///< the model's grads as the open backward found them
  std::optional<Delayed> delayed_;
  Deferred deferred_;
  std::vector<size_t> refused_;        ///< whose grads refuse() has dropped
  std::vector<bool> has_contributed_;  ///< a backward has left the parameter a grad
  std::vector<uint32_t> versions_;     ///< of those grads then
  std::vector<bool> has_zeros_;        ///< the parameter's grad is zeros that nothing was added to
  at::Tensor found_inf_per_param_;
  std::shared_ptr<const BackwardReport> last_report_;
  at::Tensor overflow_flags_;  ///< for the passes over grads; undefined if one has failed
  bool lazy_ = false;
  bool wants_norm_ = false;
};

/// Ends a backward of `all`, whose loss `scaler` has scaled by `scaled_by`: as
/// MasterGrads::finish_backward() of each, with one found_inf for all, which is returned, and
/// becomes the scaler's together with its deferred overflows. moves_scale: a dynamic scale grows or
/// backs off; else found_inf is deferred. One pass over the grads in all, and nothing waits for the
/// device.
TORCHAMP_API at::Tensor finish_backward(const std::vector<MasterGrads*>& all, LossScaler& scaler,
                                        const ScaleSnapshot& scaled_by, bool moves_scale = true,
                                        const at::Tensor& loss = {});

}  // namespace torchamp
