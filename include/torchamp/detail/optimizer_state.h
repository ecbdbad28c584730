// One optimizer's masters, and the state that its next step depends on: both languages' optimizers
// have one.
#pragma once

#include <torchamp/detail/masters.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace torchamp {

class LateReport;

namespace core {

class Backward;

/// One optimizer's masters, and the overflows of its backwards since its last step. Those are not a
/// scaler's found_inf, which belongs to one backward and updates the scale: they accumulate over
/// losses and micro-batches, and decide whether to skip the step.
class TORCHAMP_API OptimizerState : public std::enable_shared_from_this<OptimizerState> {
 public:
  /// Several optimizers share `masters` if they share a parameter, which is then unscaled once.
  /// steps_unseen: the optimizer may step without changing the masters' version counters.
  explicit OptimizerState(std::shared_ptr<Masters> masters, bool steps_unseen = false);
  ~OptimizerState();
  OptimizerState(const OptimizerState&) = delete;
  OptimizerState& operator=(const OptimizerState&) = delete;

  /// The masters that it steps, and those that other optimizers step.
  Masters& masters() const { return *masters_; }
  /// Their weights.
  MasterWeights& weights() const { return masters_->weights; }
  /// Their grads.
  MasterGrads& grads() const { return masters_->grads; }
  /// Records that it steps `param`: a master, or a parameter without one. After a backward of a
  /// scaled loss, drops its grad, which nothing has unscaled.
  void add_param(const at::Tensor& param);
  /// Whether it steps `param`.
  bool steps(const at::Tensor& param) const;
  /// Of all in the process, the last that add_param() was told steps `param`; null: none does.
  static std::shared_ptr<OptimizerState> of(const at::Tensor& param);

  /// Whether a Backward that was given it is open.
  bool is_in_backward() const { return backward_ != nullptr; }
  /// Whether its grads cannot be used yet: in an open backward, or delayed.
  bool grads_are_scaled() const { return is_in_backward() || grads().are_delayed(stepped_); }

  /// Whether it had a backward since its last step.
  bool is_to_step() const { return is_to_step_; }
  /// float32 scalar on the device, not 0 if the next step is to be skipped; undefined: it is not.
  at::Tensor found_inf() const;
  /// The same for the host, which waits for the device.
  bool has_overflowed() const;
  /// Whether that may be by grads of other optimizers.
  bool shares_overflows() const { return shares_overflows_; }
  /// For an optimizer that cannot skip on the device, but takes no step without grads: drops the
  /// grads of its parameters, `stepped`, after an overflow, but for those that another optimizer
  /// is to step by.
  void refuse(const std::vector<at::Tensor>& stepped);
  /// Whether the host knows that the next step is to be skipped. Waits for the device where grads
  /// were delayed, whose overflow is not reported yet.
  bool is_refused() const;
  /// Clears overflows.
  void clear_overflows();

  /// Like MasterWeights::refresh(), also after steps that change no version counter.
  void refresh();
  /// Discards grads that were zeroed or skipped, of all that share the masters.
  void settle();
  /// The same, for clipping. Throws RuntimeError, which names `function`, while grads are scaled,
  /// also by a backward that was not given the optimizer.
  void check_unscaled(const char* function);
  /// Synchronizes masters and model. Throws RuntimeError, which names `function`, while grads are
  /// scaled or stray. adopts_data_writes: also for elements of the model that were written
  /// bypassing its version counters.
  void begin_step(const char* function, bool adopts_data_writes);
  /// What the program may not have meant, found by the last begin_step() and by none before; empty
  /// if there is nothing.
  const std::string& doubt() const { return doubt_; }
  /// Ends a step, taken or skipped, whose losses are scaled by `scalers`: drops the
  /// masters' grads, except those that another optimizer of the same backward has yet to step.
  void end_step(const std::vector<LossScaler*>& scalers);
  /// Like torch's zero_grad, for grads that the optimizer's own does not reach.
  void zero_grad(bool set_to_none);
  /// Within a backward: after the grads of the model's parameters have become None, which does not
  /// reach those that the backward has set aside.
  void drop_set_aside(const std::vector<at::Tensor>& model_params);

  /// The host's record of its steps.
  LateReport& late_report() const { return *late_report_; }

 private:
  friend class Backward;

  void accumulate(int64_t loss_id, const at::Tensor& found_inf);
  void gather_delayed(int64_t loss_id, const at::Tensor& found_inf);
  void accumulate_shared(int64_t loss_id, const at::Tensor& agreed);
  at::Tensor found_in_own_params();
  void keep_overflows_of_grads();
  const at::Tensor& indices(at::Device device);
  void clear_found_inf_per_param();
  void check_not_stray(const char* function, bool of_masters) const;
  void drop_strays();
  void note_doubts(const char* function);
  void drop_master_grads();
  void discard_zeroed();

  std::shared_ptr<Masters> masters_;
  bool steps_unseen_;
  bool may_have_stepped_ = false;  ///< since grads were materialized for masters
  bool is_to_step_ = false;
  bool has_delayed_ = false;      ///< it was given to a backward whose grads are delayed
  bool had_scaled_loss_ = false;  ///< a backward since it was made
  const Backward* backward_ = nullptr;
  std::map<int64_t, at::Tensor> found_inf_;  ///< by loss
  bool has_refused_ = false;                 ///< by refuse()
  bool has_unreported_ = false;              ///< an overflow may be one of delayed grads
  bool is_agreed_ = false;                   ///< an overflow may be one of other parameters
  bool shares_overflows_ = false;            ///< a backward was given others, too
  at::Tensor skipped_found_inf_;  ///< found_inf() at the last step, unless grads were zeroed since
  bool lacked_grads_ = false, had_modified_grads_ = false;
  std::string doubt_;
  TensorSet stepped_;   ///< masters, and parameters without one
  at::Tensor indices_;  ///< int64, on the device: where those are in master_params()
  std::unique_ptr<LateReport> late_report_;
};

}  // namespace core
}  // namespace torchamp
