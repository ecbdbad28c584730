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

#include "core/masters.h"
#include "core/observer.h"
#include "core/overflows.h"
#include "core/param.h"
#include "optim/fused_stepper.h"

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
/// that skip it. docs/grads.md is the specification.
class TORCHAMP_API OptimizerState : public std::enable_shared_from_this<OptimizerState> {
 public:
  /// `masters`: those of its initialize; null: its own.
  explicit OptimizerState(std::shared_ptr<Masters> masters = nullptr,
                          std::shared_ptr<Observer> observer = nullptr);
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
  /// The masters of its initialize.
  Masters& masters() const { return *masters_; }
  /// Whether any parameter has a master.
  bool has_masters() const;
  /// Whether it is one of the param's users.
  bool steps(const Param& param) const;
  /// Whether `held` is params()[i].
  bool steps_at(size_t i, const at::Tensor& held) const {
    return i < params_.size() && params_[i]->model.is_same(held);
  }
  /// Steps `param`, a tensor of the model, from now on, unless it does. `master`: the one that it
  /// gets; undefined: the one that it has, or a new one if masters are made and it has 16 bits, or
  /// none. Throws ValueError, which names `function`, if another optimizer steps the master.
  void add(const char* function, const at::Tensor& param, const at::Tensor& master = {},
           bool makes_masters = false);
  /// Steps `held`, the groups' tensors, from now on, in that order. The overflows of others skip
  /// nothing, unless other optimizers or ranks count on the skip. Throws ValueError, which names
  /// `function`, and changes nothing, for a tensor that comes twice, or whose master another
  /// optimizer steps.
  void follow(const char* function, at::TensorList held, bool makes_masters);
  /// Steps no longer what is not in `held`, the groups' tensors, so that others may.
  void let_go(at::TensorList held);
  /// Throws RuntimeError in a backward.
  void check_releasable() const;

  /// @}
  /// @name The next step
  /// @{

  /// Whether a Backward that was given it is open.
  bool is_in_backward() const { return is_open_; }
  /// Whether some of its grads cannot be used yet: in an open backward, or scaled.
  bool grads_are_scaled() const;
  /// What skips it.
  const Overflows& overflows() const { return overflows_; }
  /// Clears overflows.
  void clear_overflows();

  /// Synchronizes masters and model; see core::refresh.
  void refresh() const { core::refresh(params_); }
  /// Does that, also of what was written through `.data` if steps adopt that.
  void bring_together() const;
  /// Brings the grads' states up to date: drops what a step has skipped, and reads what the program
  /// has done to the grads.
  void update_grads();
  /// Does update_grads(), for clipping. Throws RuntimeError, which names `function`, while grads
  /// are scaled, also by a backward that was not given the optimizer.
  void check_unscaled(const char* function);
  /// Ends a step, taken or skipped, whose losses are scaled by `scalers`: the grads are used, and
  /// what a skipped step has refused is given up.
  void end_step(const std::vector<LossScaler*>& scalers);
  /// After the optimizer's zero_grad() has zeroed all grads, which does not reach those that are
  /// set aside, nor overflows. Zeros that it has left in grads stay.
  void note_zeroed();
  /// The same after the model's, for the grads of some parameters, each once.
  void note_zeroed(const std::vector<at::Tensor>& model_params);
  /// Unscales grads now, and from now on in every backward; masters show theirs, float32, from now
  /// on.
  void show_grads();
  /// Whether masters show their grads between backward and step.
  bool shows_grads() const { return shows_grads_; }

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

  /// A warning about what the program may not have meant, found by the last step or look at the
  /// groups, and by none before; empty if there is none.
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
  void restore_grads();
  bool has_new_grads() const;
  bool has_finished_grads() const;
  void delay(const std::shared_ptr<const Scaling>& scaling);
  at::Tensor finish(const at::Tensor& loss_scale, bool is_identity, const at::Tensor& found_before,
                    const DynamicScale* moved, const at::Tensor& loss);
  std::vector<std::shared_ptr<const Scaling>> other_scalings(const LossScaler& scaler) const;
  at::Tensor unscale(const Scaling& scaling);
  void accumulate(const at::Tensor& found_inf, bool is_shared) {
    overflows_.add(found_inf, is_shared);
  }

  // Its pass.
  bool can_check_only() const;
  bool can_leave_unscaled() const;
  void leave_unscaled();
  void widen_grads();
  at::Tensor run(const UnscalePass& pass, const at::Tensor& loss_scale, BackwardEnd end,
                 bool checks_only);

  // Strays: grads that a backward without this optimizer leaves its parameters.
  void watch_strays();
  void note_strays(bool is_scaled);
  void check_no_strays(const char* function, bool set_aside) const;

  void begin_using(const char* function, const std::shared_ptr<Param>& param);
  void retire(const std::shared_ptr<Param>& param);
  void keep(const std::vector<int64_t>& kept);
  void notice();
  void forget_backwards();
  void clear_sharers();
  static void note_dropped(Param& param);
  bool have_contributed() const;
  bool grads_are_open() const;
  bool lacks_grads() const;
  void warn_once(const std::string& warning);
  void check_not_written(const Param& param) const;

  ParamList params_;
  std::shared_ptr<Masters> masters_;
  Overflows overflows_;
  bool shows_grads_ = false;
  bool is_open_ = false;
  bool had_scaled_loss_ = false;            ///< a backward since it was made
  bool had_drops_ = false;                  ///< the program has zeroed grads since update_grads()
  std::shared_ptr<const Scaling> scaling_;  ///< of the last backward that left grads kScaled
  at::Tensor factor_, norm_;                ///< of grads that are kChecked
  bool lazy_ = false;
  bool wants_norm_ = false;
  std::thread::id thread_;  ///< that used it last
  std::string warning_;
  std::unordered_set<std::string> warned_;
  std::shared_ptr<Observer> observer_;  ///< may be null
  Report last_report_;
};

}  // namespace core
}  // namespace torchamp
