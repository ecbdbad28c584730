// Stage 7: an optimizer's step on lists of tensors, in one pass.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <optional>

namespace torchamp {
/// @addtogroup fused
/// @{

/// What a step does to each element. kLambUpdate and kLambApply are the two passes of LAMB.
enum class StepAlgorithm {
  kAdam,      ///< states exp_avg, exp_avg_sq
  kSgd,       ///< no states
  kMomentum,  ///< state momentum_buffer; hyperparameters of kSgd
  kNovoGrad,  ///< state exp_avg; norm_averages and update_norms (of the unscaled grads) are needed
  /// States exp_avg, exp_avg_sq, update, which the second pass reads. For max_grad_norm,
  /// update_norms holds the total norm of all grads, at every position.
  kLambUpdate,
  kLambApply  ///< grads are the updates, unscaled; both norms are needed
};

/// The number of states that the algorithm keeps per parameter.
TORCHAMP_API int64_t states_of(StepAlgorithm algorithm);

/// Doubles in a group's row of hyperparameters.
constexpr int64_t kHyperparameters = 12;

class KnownTensors;

/// The tensors of a step. Positions whose grad is undefined are skipped.
struct StepLists {
  at::TensorList grads;   ///< scaled or not, any floating dtype
  at::TensorList params;  ///< read and written: float32 masters, or the model's own
  /// The first state of each position, then the second of each, …; bfloat16 ones are rounded
  /// stochastically.
  at::TensorList states;
  /// Written: params, rounded. Undefined, or empty, if there is none.
  at::TensorList model_params;
  /// Facts about states, params and model_params, in this order, cached by earlier steps; null:
  /// none are. The states must then be the caller's own: their version counters do not change.
  KnownTensors* known = nullptr;
  /// Positions whose grads are not multiplied by grad_factor.
  at::IntArrayRef unscaled = {};
};

/// The scalars of a step. Per position of the lists, on their device, unless noted otherwise.
struct StepScalars {
  at::Tensor steps;  ///< float32 [positions]: steps done so far, incremented
  /// Float64 [groups, kHyperparameters], on the CPU, where it is read now, or on the device of
  /// steps, where it is read when the step runs.
  at::Tensor hyper;
  at::Tensor groups;  ///< int32 [positions], on the CPU: which row of hyper
  std::optional<at::Tensor> grad_factor = {};    ///< float32 scalar that grads are multiplied by
  std::optional<at::Tensor> skip = {};           ///< float32 scalar: unless 0, nothing is written
  std::optional<at::Tensor> param_norms = {};    ///< float32 [positions]
  std::optional<at::Tensor> update_norms = {};   ///< float32 [positions]
  std::optional<at::Tensor> norm_averages = {};  ///< float32 [positions], updated
  /// Rounds bfloat16 params up or down at random, so that small updates are not lost without a
  /// master. The random bits depend only on position, step and element, so that runs are
  /// reproducible.
  bool stochastic_rounding = false;
  /// int32 scalar, 0 before and after, for the kernels' use: a caller that keeps one avoids
  /// an allocation at each step.
  std::optional<at::Tensor> ticket = {};
  /// A group's learning rate, overriding hyper's: a float32 or float64 scalar that is read when the
  /// step runs. Undefined, or empty, if there is none.
  at::TensorList lrs = {};
};

/// Steps every parameter that has a grad. Nothing waits for the device.
///
/// The columns of hyper are
/// - kAdam: lr, beta1, beta2, eps, weight_decay, decoupled, maximize, bias_correction
/// - kSgd: lr, momentum, dampening, weight_decay, nesterov, maximize, decay_after_momentum
/// - kNovoGrad: lr, beta1, beta2, eps, weight_decay, maximize, bias_correction, decay_in_moment,
///   averages_grads, starts_at_zero
/// - kLamb…: lr, beta1, beta2, eps, weight_decay, decoupled, maximize, bias_correction,
///   averages_grads, always_adapts, max_grad_norm (0: none)
/// with true and false as 1 and 0.
///
/// Throws, before anything is written: TypeError for a dtype or layout, RuntimeError for lengths,
/// sizes and devices.
TORCHAMP_API void fused_step(StepAlgorithm algorithm, const StepLists& lists,
                             const StepScalars& scalars);

/// @}

}  // namespace torchamp
