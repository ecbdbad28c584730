// Stage 7: what the fused optimizers of both languages stand on.
#pragma once

#include <torchamp/fused_step.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

namespace torchamp {
/// @addtogroup fused
/// @{

/// Parameters on one device that are stepped by one algorithm, with their states: those of all
/// groups in one pass. States are made when a parameter first has a grad.
class TORCHAMP_API FusedStepper {
 public:
  /// A group's hyperparameters: the columns of fused_step, the rest zeros.
  using Row = std::array<double, kHyperparameters>;

  /// What one step is told.
  struct Step {
    std::optional<at::Tensor> grad_factor = {};  ///< float32 scalar; grads are multiplied with it
    std::optional<at::Tensor> skip = {};         ///< float32 scalar; unless 0 nothing changes
  };

  /// What one step reads and writes besides params(). As long as them; tensors may be undefined.
  struct Lists {
    at::TensorList grads;              ///< scaled or not; undefined: not stepped
    at::TensorList model_params = {};  ///< get params, rounded; or empty
    at::TensorList low_bits = {};      ///< int16, in the place of params; or empty
    at::IntArrayRef unscaled = {};     ///< where grad_factor is not for the grad
  };

  /// How values are kept.
  struct Storage {
    at::ScalarType state_dtype = at::kFloat;  ///< bfloat16 is rounded stochastically
    bool stochastic_rounding = false;         ///< rounds bfloat16 params stochastically
  };

  /// `groups[i]`: to which row of hyperparameters params[i] belongs. `algorithm`: kLambUpdate for
  /// LAMB, whose second pass follows by itself. Throws ValueError for a state_dtype other than
  /// float32 and bfloat16, and for stochastic_rounding with float16 params.
  FusedStepper(StepAlgorithm algorithm, std::vector<at::Tensor> params, std::vector<int64_t> groups,
               Storage storage = {at::kFloat, false});

  /// The parameters that it was made with, in that order.
  const std::vector<at::Tensor>& params() const { return params_; }
  /// The states of params()[i], in the order of StepAlgorithm; empty before its first step.
  std::vector<at::Tensor> states(size_t i) const;
  /// params()[i]'s count of steps: a float32 scalar on the device that steps count up.
  at::Tensor step_count(size_t i) const;
  /// params()[i]'s running norm, which NovoGrad keeps: a float32 scalar on the device.
  at::Tensor norm_average(size_t i) const;
  /// Takes `states` over, or a copy where device or dtype are not those of params()[i]'s states;
  /// zeros where undefined. Copies the others.
  void set_state(size_t i, const std::vector<at::Tensor>& states, const at::Tensor& step_count,
                 const at::Tensor& norm_average = {});

  /// One row a group; learning rates that set_lr() put in their place are forgotten.
  void set_hyper(const std::vector<Row>& rows);
  /// Puts a scalar tensor in the place of a group's learning rate. A float32 or float64 one on the
  /// parameters' device is read when a step runs, also where that was captured into a graph; one on
  /// the CPU is read now.
  void set_lr(int64_t group, const at::Tensor& lr);

  /// The parameters whose states steps have made since this was called last.
  std::vector<int64_t> take_new_states();
  /// Whether a parameter's step depends on the norm of all grads together.
  bool joins_norms() const { return clips_; }
  /// Steps the parameters by their own grads.
  void step(const Step& step);
  /// Whether a step needs norms of the parameters, and so cannot do with low bits.
  bool reads_norms_of_params() const { return adapts_ || algorithm_ == StepAlgorithm::kLambUpdate; }
  /// Steps the parameters by the grads of `lists`.
  void step(const Lists& lists, const Step& step);

 private:
  at::TensorOptions options(at::ScalarType dtype) const;
  void make_states(const Lists& lists);
  void make_state(size_t i, const at::Tensor& stepped);
  StepScalars scalars(const Step& step) const;
  at::ScalarType state_type(const at::Tensor& param) const;
  StepLists step_lists(const Lists& lists) const;
  at::Tensor norms_of_grads(const Lists& lists, const Step& step) const;
  void step_by_norms(const Lists& lists, const Step& step);
  void step_lamb(const Lists& lists, const Step& step);

  StepAlgorithm algorithm_;
  Storage storage_;
  int64_t kept_states_;
  bool adapts_ = false;  ///< some group has a trust coefficient: LARS
  bool clips_ = false;   ///< some group of LAMB has a largest norm of all grads
  std::vector<at::Tensor> params_;
  std::vector<at::Tensor> states_;  ///< flat, as StepLists wants them
  std::shared_ptr<KnownTensors> known_states_;
  std::vector<int64_t> new_states_;
  std::vector<Row> rows_;
  at::Tensor steps_;
  at::Tensor groups_;
  at::Tensor hyper_;             ///< rows_, on the CPU
  std::vector<at::Tensor> lrs_;  ///< as StepScalars wants them
  at::Tensor norm_averages_;
  at::Tensor ticket_;
};

/// @}

}  // namespace torchamp
