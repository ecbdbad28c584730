// Stages 3 and 5: float32 masters of low-precision parameters, and the gradients on their way to
// them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/export.h>
#include <torchamp/fused_stepper.h>
#include <torchamp/loss_scaler.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace torchamp {

struct BackwardEnding;
namespace core {
class Backward;
class OptimizerState;
}  // namespace core

/// @addtogroup masters
/// @{

/// How MasterWeights::finish_backward() ends. Tensors are float32 scalars on the device.
struct BackwardEnd {
  at::Tensor loss_scale;                ///< that the grads bear
  at::Tensor found_before = {};         ///< counts as found, too, unless 0 or undefined
  const DynamicScale* moved = nullptr;  ///< moves by what is found; may hold the loss_scale itself
};

/// The parameters of one optimizer, each with the tensor that the optimizer steps: a float32 master
/// of its own, or the parameter itself where there are no masters (then "master" below means the
/// parameter).
///
/// A backward goes: prepare_backward(), the backward, then finish_backward(), or delay_backward(),
/// or cancel_backward(), which undoes the first.
///
/// A step uses the sum of what the backwards since the last zeroing or step contributed, each
/// divided by the scale that it bears. Between backwards a parameter's contributions are
///
/// - made: unscaled, in the master's grad, or the parameter's own where it is its own master;
/// - delayed: in the parameter's grad, scaled by one snapshot of one loss's scale;
/// - pending: in the parameter's grad, checked, for a fused step to unscale;
///
/// and none of it is left once the program drops the parameter's grad.
class TORCHAMP_API MasterWeights {
 public:
  /// Tracks `model_param` and returns its master: `master`, which must be float32 and of its sizes,
  /// or if undefined the parameter itself. A parameter that is tracked already keeps the master it
  /// has.
  at::Tensor track(const at::Tensor& model_param, const at::Tensor& master = {});

  /// Makes the float32 master of a parameter that is about to be cast: takes over its float32
  /// memory, so nothing of its precision is lost. Call this, then give the parameter low-precision
  /// data, then track() both.
  static at::Tensor make_master(const at::Tensor& model_param);

  /// What is tracked, in the order of track().
  const std::vector<at::Tensor>& model_params() const { return model_params_; }
  /// The masters of model_params(), in their order.
  const std::vector<at::Tensor>& master_params() const { return master_params_; }
  /// The master of `model_param`, undefined if it is not tracked.
  at::Tensor master_of(const at::Tensor& model_param) const;
  /// Whether any parameter has a master other than itself.
  bool has_masters() const { return !separate_.empty(); }

  /// A scale that grads bear.
  struct Scaled {
    std::shared_ptr<const ScaleSnapshot> by;     ///< as it was when the loss was multiplied
    std::shared_ptr<DeferredOverflow> overflow;  ///< takes note of theirs; null for a fixed scale
  };

  /// Opens a backward: sets the model's grads aside, so that it starts from none.
  void prepare_backward();
  /// Ends a backward whose grads stay scaled: they add to those that are delayed already, which
  /// must bear the same scale. finish_backward() sees to all of them.
  void delay_backward(Scaled scaled);
  /// Whose scale delayed grads bear; null where none are delayed.
  const Scaled* delayed() const { return delayed_ ? &delayed_->scaled : nullptr; }
  /// Unscales the model's grads into the masters' grads, adding to what earlier backwards left
  /// there. With no separate master, the parameter's own grad is unscaled in place. Returns a new
  /// float32 scalar on the device: 1 if any is not finite or end.found_before is not 0, else 0.
  at::Tensor finish_backward(const BackwardEnd& end);
  /// What the host will learn of the last backward; null if that went into a graph.
  const std::shared_ptr<const BackwardReport>& last_report() const { return last_report_; }
  /// Puts the grads back as prepare_backward() found them; nothing if it was not called.
  void cancel_backward();
  /// Forgets contributions whose grads the program has dropped from the model. Returns whether
  /// there were some, and none are left.
  bool drop_zeroed();
  /// Gives up the grads that a step has refused, of parameters that are their own masters, and that
  /// nobody has zeroed since. `found_inf`: float32 scalar on the device, not 0 if it was refused.
  void drop_refused(const at::Tensor& found_inf);

  /// Whether finish_backward() may leave master grads unmade, where a fused step can do without: it
  /// then only checks the model's grads, and step() unscales them on the way. Off to begin with.
  void set_lazy(bool lazy);
  /// What set_lazy() said last.
  bool lazy() const { return lazy_; }
  /// Whether masters are kept as int16 remainders beside the model's 16 bits, as long as they are
  /// lazy: 2 bytes a parameter instead of 4, and the same numbers (math/rounding.h has the
  /// exceptions). Until somebody makes them eager, master_params() hold NaN.
  /// Throws RuntimeError unless lazy().
  void split();
  /// Whether some masters are remainders at this moment.
  bool is_split() const { return !remainders_.empty(); }
  /// The master's value: a copy in float32. Undefined for a parameter that is not tracked.
  at::Tensor master_value(const at::Tensor& model_param) const;
  /// Makes `value`, of any floating dtype, the master's value.
  void set_master_value(const at::Tensor& model_param, const at::Tensor& value);
  /// Whether the last backward's master grads are still to be made.
  bool is_pending() const { return pending_.factor.defined(); }
  /// Makes them. Nothing if there are none to make.
  void materialize();
  /// Scales the grads of all `weights`, which are unscaled or still to be made, so that their norm
  /// together is at most `max_norm`; returns what it was, a float32 scalar on the device, which
  /// nothing waits for. From the first call on, the checks of lazy backwards find the norm on their
  /// way.
  TORCHAMP_API friend at::Tensor clip_grad_norm(const std::vector<MasterWeights*>& weights,
                                                double max_norm);
  /// Steps by `stepper`, whose parameters are among master_params(), and writes the model's, in one
  /// pass. `skip`: float32 scalar on the device, unless 0 nothing changes; undefined: 0.
  /// Grads stay, for other steppers of the same optimizer; drop_master_grads() ends the step.
  void step(FusedStepper& stepper, const at::Tensor& skip);

  /// Which parameters' grads were not finite in any backward since this was cleared or grads were
  /// dropped: uint8, one element a parameter, on the device; undefined before the first backward.
  const at::Tensor& found_inf_per_param() const { return found_inf_per_param_; }
  /// Forgets which were not finite.
  void clear_found_inf_per_param() { found_inf_per_param_.reset(); }
  /// The same as indices into model_params(). Waits for the device.
  std::vector<int64_t> nonfinite_params() const;

  /// Brings the two sides together where one was written from outside: a model parameter that was
  /// written (a broadcast, a load) becomes the master's new value, else a master that was stepped
  /// becomes the model's. Writes that bypass version counters (`.data`, numpy) are not seen;
  /// force_refresh() is for those. Returns whether a master was stepped from outside.
  /// Throws if a model parameter changed its dtype, which torch::load and model.half() do.
  bool refresh();
  /// master = float(model), whatever the counters say.
  void force_refresh();
  /// model = master, rounded; after a step.
  void copy_to_model();
  /// The same without telling autograd, for when masters may or may not have been stepped: if they
  /// were not, nothing changes for a backward that is still to come.
  void recopy_to_model();
  /// Takes note that model and masters agree.
  void mark_synced();
  /// The same for one parameter, if it is tracked.
  void mark_synced(const at::Tensor& model_param);
  /// Whether the model's parameter is its master, rounded. Waits for the device.
  bool is_rounded_master(const at::Tensor& model_param) const;
  /// In float32, the master's elements where the model still holds them, rounded; elsewhere the
  /// model's, which were written past its version counter, through `.data` say. Undefined for a
  /// parameter that is not tracked.
  at::Tensor held_value(const at::Tensor& model_param) const;
  /// Makes held_value() the master's, for every parameter. Waits for no device.
  void adopt_data_writes();

  /// Drops the masters' and the model's grads.
  void drop_grads();
  /// The same of some masters.
  void drop_grads(const std::vector<at::Tensor>& master_params);
  /// Drops the grads of masters, and leaves alone those of parameters that are their own master.
  void drop_master_grads();
  /// As torch's zero_grad, for the model's grads (the optimizer sees to the masters'). What is set
  /// aside of them is dropped.
  void zero_model_grads(bool set_to_none);

 private:
  /// What was seen of a pair when the two sides last agreed.
  struct Seen {
    uint32_t model_version;
    uint32_t master_version;
    const void* model_data;
  };

  struct Delivery;
  friend class core::Backward;
  friend class core::OptimizerState;

  void make_room();
  std::vector<at::Tensor> collect();
  void note_contributions(const std::vector<at::Tensor>& before);
  bool was_zeroed(size_t i) const { return has_contributed_[i] && !has_grad(i); }
  bool has_grad(size_t i) const { return model_params_[i].grad().defined(); }
  bool can_leave_pending() const;
  void leave_pending(size_t i, Delivery& delivery);
  at::Tensor deliver(const Delivery& delivery, const BackwardEnd& end, bool leaves_pending);
  void pass_over(const Delivery& delivery, const at::Tensor& loss_scale,
                 const BackwardEnding& ending);
  void clear_pending();
  void check_pending_unchanged() const;
  at::Tensor norm_of_pending();
  std::vector<at::Tensor> made_grads() const;
  std::vector<size_t> indices_of(const std::vector<at::Tensor>& master_params) const;
  std::vector<at::Tensor> stepped_params(const std::vector<size_t>& indices) const;
  bool is_split(size_t i) const { return i < remainders_.size() && remainders_[i].defined(); }
  void join();
  void adopt_model(size_t i);
  bool holds_master(size_t i) const;
  Seen look(size_t i) const;
  bool is_separate(size_t i) const;
  void check_unchanged(size_t i) const;
  void route(size_t i, const at::Tensor& before, Delivery& delivery);

  std::vector<at::Tensor> model_params_;
  std::vector<at::Tensor> master_params_;
  std::vector<at::ScalarType> model_dtypes_;
  std::vector<Seen> seen_;
  std::vector<size_t> separate_;  ///< indices of the parameters that have a master of their own
  std::unordered_map<const c10::TensorImpl*, size_t> index_;  ///< by model parameter
  std::unordered_map<const c10::TensorImpl*, size_t> master_index_;
  std::vector<core::OptimizerState*> users_;  ///< the optimizers that step these

  std::optional<std::vector<at::Tensor>>
      open_;  ///< the model's grads as the open backward found them
  struct Delayed {
    Scaled scaled;
    std::vector<bool> bears;         ///< whether the parameter's grad bears the scale
    std::vector<at::Tensor> before;  ///< where it does, and is its own master: what was made
  };
  std::optional<Delayed> delayed_;
  std::vector<bool> has_contributed_;  ///< a backward has left the parameter a grad
  at::Tensor found_inf_per_param_;
  std::shared_ptr<const BackwardReport> last_report_;
  at::Tensor raised_;  ///< for the passes over grads; undefined where one has failed

  /// Of the model's grads whose master grads are still to be made.
  struct Pending {
    explicit Pending(size_t count = 0) : grads(count), versions(count) {}

    at::Tensor factor;  ///< that unscales and clips them; undefined where there are none
    at::Tensor norm;    ///< of the scaled grads, if it was asked for in time
    std::vector<at::Tensor> grads;
    std::vector<uint32_t> versions;
  };

  bool lazy_ = false;
  bool wants_norm_ = false;
  Pending pending_;
  std::vector<at::Tensor> remainders_;  ///< of split masters; undefined for others
};

TORCHAMP_API at::Tensor clip_grad_norm(const std::vector<MasterWeights*>& weights, double max_norm);

/// Ends a backward of `weights`, whose loss `scaler` has scaled by `scaled_by`: as
/// MasterWeights::finish_backward() of each, with one found_inf for all, which is returned, and
/// becomes the scaler's together with what that has deferred. moves_scale: a dynamic scale grows or
/// backs off; else found_inf is deferred. In all one pass over the grads, and nothing waits for the
/// device.
TORCHAMP_API at::Tensor finish_backward(const std::vector<MasterWeights*>& weights,
                                        LossScaler& scaler, const ScaleSnapshot& scaled_by,
                                        bool moves_scale = true);

/// @}

}  // namespace torchamp
