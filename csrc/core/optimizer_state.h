// OptimizerState: the parameters that one optimizer steps, with the grads of its next step. The
// optimizers of both languages have one.
#pragma once

#include <torchamp/loss_scaler.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/fused_stepper.h"
#include "core/observer.h"
#include "core/param.h"

namespace torchamp {

class UnscalePass;
struct BackwardEnd;

namespace core {

/// What to do where two optimizers are to step one parameter.
constexpr const char* kOneOwner =
    "make one optimizer with two groups, or train in phases: amp.release(model), then initialize "
    "with the other optimizer";

/// Throws ValueError, which names `function`, if an optimizer steps the param's master.
void check_unowned(const char* function, const Param& param);

/// The parameters that one optimizer steps, the grads that its next step uses, and the overflows
/// that skip it. Those are not a scaler's found_inf, which belongs to one backward and updates the
/// scale: they accumulate over losses and micro-batches. docs/grads.md is the specification.
class TORCHAMP_API OptimizerState : public std::enable_shared_from_this<OptimizerState> {
 public:
  /// shows_grads: whether masters have their grads between backward and step, and not only in it.
  explicit OptimizerState(bool shows_grads = true, std::shared_ptr<Observer> observer = nullptr);
  ~OptimizerState();
  OptimizerState(const OptimizerState&) = delete;
  OptimizerState& operator=(const OptimizerState&) = delete;

  /// @name What it steps
  /// @{

  /// In the order of the optimizer's groups.
  const ParamList& params() const { return params_; }
  /// The model's.
  std::vector<at::Tensor> model_params() const;
  /// The tensors that are stepped for them: masters, and the parameters that have none.
  std::vector<at::Tensor> master_params() const;
  /// Whether any parameter has a master.
  bool has_masters() const;
  /// Whether it is one of the param's users.
  bool steps(const Param& param) const;
  /// Whether `held` is what it steps for params()[i].
  bool steps_at(size_t i, const at::Tensor& held) const {
    return i < params_.size() && params_[i]->master.is_same(held);
  }
  /// Steps `param` from now on, a tensor of the model, or a master of one that it has stepped
  /// before. Returns what the groups are to hold for it: the master that it has, `master`, or, if
  /// that is undefined, a new one if masters are kept and it has 16 bits, else the parameter
  /// itself. The grad that nothing has unscaled is dropped. Throws ValueError, which names
  /// `function`, if another optimizer steps the master.
  at::Tensor add(const char* function, const at::Tensor& param, at::Tensor master = {},
                 bool keeps_masters = false);
  /// Throws ValueError, which names `function`, if another optimizer steps the param's master.
  void check_free(const char* function, const Param& param) const;
  /// Steps `held` alone from now on, which it has stepped before, in that order. The overflows of
  /// others skip nothing, unless other optimizers or ranks count on the skip. Masters of parameters
  /// that the program keeps are kept for their return. Throws ValueError, which names `function`,
  /// and changes nothing, for a tensor that comes twice.
  void retain(const char* function, at::TensorList held);
  /// Steps no longer what is not in `held`, the groups' tensors, so that others may.
  void let_go(at::TensorList held);
  /// Throws RuntimeError in a backward. Makes the masters what the model holds, in float32, also
  /// those that are kept for a return.
  void prepare_release();
  /// Gives their memory to the model's parameters, which become float32, without grads.
  void give_masters_back() const;

  /// @}
  /// @name The next step
  /// @{

  /// Whether a Backward that was given it is open.
  bool is_in_backward() const { return is_open_; }
  /// Whether some of its grads cannot be used yet: in an open backward, or scaled.
  bool grads_are_scaled() const;
  /// float32 scalar on the device, not 0 if the next step is to be skipped; undefined: it is not.
  const at::Tensor& found_inf() const { return found_inf_; }
  /// Whether found_inf() is not 0. Waits for the device.
  bool has_overflowed() const;
  /// Whether it may have, as far as the host knows without waiting.
  bool may_have_overflowed() const;
  /// Whether that may be of grads of other optimizers.
  bool shares_overflows() const { return shares_overflows_; }
  /// Clears overflows.
  void clear_overflows();

  /// From now on, steps adopt what was written to the model, or to masters, bypassing PyTorch's
  /// version counters, as through `.data`.
  void adopt_data_writes();
  /// Whether they do.
  bool adopts_data_writes() const { return adopts_data_writes_; }
  /// Synchronizes masters and model; see core::refresh.
  void refresh() const { core::refresh(params_); }
  /// Brings the grads' states up to date: drops what a step has skipped, and reads what the program
  /// has done to the grads.
  void update_grads();
  /// Does update_grads(), for clipping. Throws RuntimeError, which names `function`, while grads
  /// are scaled, also by a backward that was not given the optimizer.
  void check_unscaled(const char* function);
  /// Ends a step, taken or skipped, whose losses are scaled by `scalers`: drops the masters' grads,
  /// and what a skipped step has refused.
  void end_step(const std::vector<LossScaler*>& scalers);
  /// Like torch's zero_grad, for grads that the optimizer's own does not reach.
  void zero_grad(bool set_to_none);
  /// After the model's zero_grad has zeroed the grads of some parameters, each once, which does not
  /// reach those that an open backward has set aside.
  void note_zeroed(const std::vector<at::Tensor>& model_params);
  /// Whether masters have their grads between backward and step, and not only in it.
  bool shows_grads() const { return shows_grads_; }
  /// From now on they do.
  void show_grads();

  /// @}
  /// @name Fused steps
  /// @{

  /// Whether a backward may leave grads kChecked, if a fused step does not need more. Off by
  /// default; turning it off unscales them.
  void set_lazy(bool lazy);
  /// The last argument of set_lazy().
  bool lazy() const { return lazy_; }
  /// Whether grads are kChecked.
  bool is_checked() const { return factor_.defined(); }
  /// Makes grads that are kChecked kUnscaled. Throws RuntimeError if the program has written them.
  void unscale();
  /// The factor of grads that are kChecked: the float32 inverse of their scale, clipped.
  const at::Tensor& factor() const { return factor_; }
  /// Replaces it.
  void set_factor(const at::Tensor& factor) { factor_ = factor; }
  /// The norm of the grads that are kChecked, still scaled, a float32 scalar on the device;
  /// undefined if there are none. After the first call, backwards compute it in their pass.
  at::Tensor norm_of_checked();
  /// Steps by `stepper`, whose parameters are among the masters, and writes the model's, in one
  /// pass. `skip`: float32 scalar on the device, unless 0 nothing changes; undefined: 0.
  void step(FusedStepper& stepper, const at::Tensor& skip);

  /// @}

  /// A warning about what the program may not have meant, found by the last step or zero_grad() and
  /// by none before; empty if there is none.
  const std::string& warning() const { return warning_; }

 private:
  friend class Backward;
  friend class Step;
  using Report = std::shared_ptr<const BackwardReport>;

  /// The others of this thread that are not among `given`.
  static std::vector<std::shared_ptr<OptimizerState>> others_than(
      const std::vector<std::shared_ptr<OptimizerState>>& given);

  // A backward.
  void open_grads();
  void take_grads();
  void open(Param& param);
  void restore_grads();
  bool has_new_grads() const;
  bool has_finished_grads() const;
  void delay(const std::shared_ptr<const Scaling>& scaling);
  at::Tensor finish(const at::Tensor& loss_scale, const at::Tensor& found_before,
                    const DynamicScale* moved, const at::Tensor& loss);
  std::vector<std::shared_ptr<const Scaling>> other_scalings(const LossScaler& scaler) const;
  at::Tensor unscale(const Scaling& scaling);
  void accumulate(const at::Tensor& found_inf, bool shares);

  // Its pass.
  bool can_check_only() const;
  at::Tensor route(size_t i, UnscalePass& pass) const;
  at::Tensor run(const UnscalePass& pass, const at::Tensor& loss_scale, BackwardEnd end,
                 bool checks_only);
  at::Tensor take_overflow_flags(at::Device device);

  // Strays: grads that a backward without this optimizer leaves its parameters.
  void watch_strays();
  void note_strays(bool is_scaled);
  void check_no_strays(const char* function, bool set_aside) const;

  // A grad's states.
  void notice();
  void notice(Param& param);
  void take_over(Param& param, const at::Tensor& grad) const;
  void zero_grad(Param& param, bool set_to_none);
  void retire(const std::shared_ptr<Param>& param);
  void forget_backwards();
  void clear_sharers();
  void discard_refused(Param& param) const;
  void drop(Param& param);
  bool have_contributed() const;
  bool grads_are_open() const;
  bool lacks_grads() const;
  at::Tensor overflow_of(const std::vector<int64_t>& indices) const;
  void lend_grads(bool lends) const;
  bool has_written_beside_scaled() const;
  void warn_once(const std::string& warning);
  void check_not_written(const Param& param) const;

  ParamList params_;
  ParamList retired_;  ///< stepped before, of tensors that the program still has
  bool shows_grads_;
  bool is_open_ = false;
  bool adopts_data_writes_ = false;
  bool had_scaled_loss_ = false;            ///< a backward since it was made
  bool had_drops_ = false;                  ///< the program has zeroed grads since update_grads()
  std::shared_ptr<const Scaling> scaling_;  ///< of the last backward that left grads kScaled
  at::Tensor found_inf_;                    ///< of the backwards since the last step
  bool shares_overflows_ = false;           ///< some may be of grads of other optimizers
  at::Tensor factor_, norm_;                ///< of grads that are kChecked
  bool lazy_ = false;
  bool wants_norm_ = false;
  at::Tensor found_inf_per_param_;  ///< uint8 [params]: since the last step
  at::Tensor overflow_flags_;       ///< for passes over grads; undefined if one has failed
  std::thread::id thread_;          ///< that used it last
  std::string warning_;
  std::unordered_set<std::string> warned_;
  std::shared_ptr<Observer> observer_;  ///< may be null
  Report last_report_;
};

}  // namespace core
}  // namespace torchamp
