// Stage 7: the implementation of both languages' fused optimizers.
#pragma once

#include <torchamp/fused_step.h>

#include <memory>
#include <optional>
#include <vector>

#include "optim/step_hyper.h"

namespace torchamp {
/// @addtogroup fused
/// @{

/// Parameters on one device that are stepped by one algorithm, with their states. One pass steps
/// those of all groups. States are created when a parameter first has a grad.
class TORCHAMP_API FusedStepper {
 public:
  using Row = StepHyper::Row;

  /// Arguments of one step: scalars of any dtype, on any device.
  struct StepInputs {
    std::optional<at::Tensor> grad_factor = {};  ///< grads are multiplied by it
    std::optional<at::Tensor> skip = {};         ///< unless 0 nothing changes
  };

  /// The tensors that one step reads and writes in addition to params(). Of the same length;
  /// tensors may be undefined.
  struct Lists {
    at::TensorList grads;              ///< scaled or not; undefined: not stepped
    at::TensorList model_params = {};  ///< written: params, rounded; or empty
    at::IntArrayRef unscaled = {};     ///< where grad_factor does not apply to the grad
  };

  /// How values are stored.
  struct Storage {
    at::ScalarType state_dtype = at::kFloat;  ///< bfloat16: with stochastic rounding
    bool stochastic_rounding = false;         ///< of bfloat16 params
  };

  /// `groups[i]`: the row of hyperparameters of params[i]. `algorithm`: kLambUpdate for LAMB, whose
  /// second pass runs automatically. Throws ValueError for a state_dtype other than
  /// float32 and bfloat16, and for stochastic_rounding with float16 params.
  FusedStepper(StepAlgorithm algorithm, std::vector<at::Tensor> params, std::vector<int64_t> groups,
               Storage storage = {at::kFloat, false});

  /// The constructor's parameters, in that order.
  const std::vector<at::Tensor>& params() const { return params_; }
  /// The states of params()[i], in the order of StepAlgorithm; empty before its first step.
  std::vector<at::Tensor> states(size_t i) const;
  /// params()[i]'s count of steps: a float32 scalar on the device that steps increment.
  at::Tensor step_count(size_t i) const;
  /// params()[i]'s running norm, which NovoGrad keeps: a float32 scalar on the device.
  at::Tensor norm_average(size_t i) const;
  /// Adopts `states`, or a copy if device or dtype differ from those of params()[i]'s states;
  /// zeros if undefined. Copies the others.
  void set_state(size_t i, const std::vector<at::Tensor>& states, const at::Tensor& step_count,
                 const at::Tensor& norm_average = {});

  /// One row per group; discards the learning rates that set_lr() has set.
  void set_hyper(const std::vector<Row>& rows) { hyper_.set(rows); }
  /// Makes a scalar tensor a group's learning rate. A float32 or float64 one on the parameters'
  /// device is read when a step runs, also in a captured graph; one on the CPU is read now.
  void set_lr(int64_t group, const at::Tensor& lr) { hyper_.set_lr(group, lr, steps_.device()); }

  /// The parameters whose states were created since clear_new_states().
  const std::vector<int64_t>& new_states() const { return new_states_; }
  void clear_new_states() { new_states_.clear(); }
  /// Whether a parameter's step depends on the total norm of all grads.
  bool joins_norms() const;
  /// Steps the parameters by their own grads, and leaves these multiplied by grad_factor.
  void step(const StepInputs& step);
  /// Steps the parameters by the grads of `lists`.
  void step(const Lists& lists, const StepInputs& given);

 private:
  at::TensorOptions options(at::ScalarType dtype) const;
  StepInputs on_device(const StepInputs& step) const;
  std::vector<size_t> without_states(const Lists& lists) const;
  void make_states(const Lists& lists);
  StepScalars scalars(const StepInputs& step) const;
  int64_t kept_states() const;
  at::ScalarType state_type(const at::Tensor& param) const;
  StepLists step_lists(const Lists& lists) const;
  void count_empty(const Lists& lists, const StepInputs& step);
  at::Tensor norms_of_grads(const Lists& lists, const StepInputs& step) const;
  void step_lamb(const Lists& lists, const StepInputs& step);
  static void leave_unscaled(at::TensorList grads, const StepInputs& step);

  StepAlgorithm algorithm_;
  Storage storage_;
  std::vector<at::Tensor> params_;
  std::vector<at::Tensor> states_;  ///< flat, as in StepLists
  std::vector<bool> has_states_;    ///< of params_: they were made, or set
  std::shared_ptr<KnownTensors> known_;
  std::vector<int64_t> new_states_;
  at::Tensor steps_;
  at::Tensor groups_;
  StepHyper hyper_;
  at::Tensor norm_averages_;
  at::Tensor ticket_;
};

/// @}

}  // namespace torchamp
