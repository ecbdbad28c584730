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
  kAmsGrad,   ///< states exp_avg, exp_avg_sq, max_exp_avg_sq; hyperparameters of kAdam
  kSgd,       ///< no states
  kMomentum,  ///< state momentum_buffer; hyperparameters of kSgd
  kAdagrad,   ///< state sum
  kNovoGrad,  ///< state exp_avg; norm_averages and update_norms (of the unscaled grads) are needed
  /// States exp_avg, exp_avg_sq, update, which is left for the second pass. For max_grad_norm,
  /// update_norms holds the norm of all grads together, at every position.
  kLambUpdate,
  kLambApply  ///< grads are the updates, taken as they are; both norms are needed
};

/// The number of states that the algorithm keeps for a parameter.
TORCHAMP_API int64_t states_of(StepAlgorithm algorithm);

/// Doubles in a group's row of hyperparameters.
constexpr int64_t kHyperparameters = 12;

class KnownTensors;

/// The tensors of a step. Positions whose grad is undefined are passed over.
struct StepLists {
  at::TensorList grads;  ///< scaled or not, any floating dtype
  /// Read and written: float32 masters, the model's own, or the int16 low bits of masters that
  /// round to model_params.
  at::TensorList params;
  /// The first state of each position, then the second of each, …; bfloat16 ones are rounded by
  /// chance.
  at::TensorList states;
  /// Written: params, rounded. Undefined, or empty, where there is none. Beside low bits they
  /// must be there in float16 or bfloat16, and are read too.
  at::TensorList model_params;
  /// What earlier steps learnt of `states`, for a caller that keeps them to itself (their version
  /// counters then stay as they are); or null.
  KnownTensors* known_states = nullptr;
  /// Positions whose grads are taken as they are: grad_factor is for the others.
  at::IntArrayRef unscaled = {};
};

/// The scalars of a step. Per position of the lists, on their device, where not said otherwise.
struct StepScalars {
  at::Tensor steps;  ///< float32 [positions]: steps done so far, counted up
  /// Float64 [groups, kHyperparameters], on the CPU, from where it is taken by value, or on the
  /// device of steps, where it is read when the step runs.
  at::Tensor hyper;
  at::Tensor groups;  ///< int32 [positions], on the CPU: which row of hyper
  std::optional<at::Tensor> grad_factor = {};    ///< float32 scalar that grads are multiplied with
  std::optional<at::Tensor> skip = {};           ///< float32 scalar: unless 0, nothing is written
  std::optional<at::Tensor> param_norms = {};    ///< float32 [positions]
  std::optional<at::Tensor> update_norms = {};   ///< float32 [positions]
  std::optional<at::Tensor> norm_averages = {};  ///< float32 [positions], updated
  /// Rounds bfloat16 params up or down at random, so that small updates are not lost for want of a
  /// master. The chance depends on position, step and element alone, so that runs repeat.
  bool stochastic_rounding = false;
  /// int32 scalar, 0 before and after, for the kernels' own use: a caller that keeps one to itself
  /// spares each step the making of one.
  std::optional<at::Tensor> ticket = {};
  /// A group's learning rate in the place of hyper's: a float32 or float64 scalar that is read when
  /// the step runs. Undefined, or empty, where there is none.
  at::TensorList lrs = {};
};

/// Steps every parameter that has a grad. Nothing waits for the device.
///
/// The columns of hyper are
/// - kAdam: lr, beta1, beta2, eps, weight_decay, decoupled, maximize, bias_correction
/// - kSgd: lr, momentum, dampening, weight_decay, nesterov, maximize, decay_after_momentum,
///   trust_coefficient, trust_eps, trust_clip
/// - kAdagrad: lr, lr_decay, eps, weight_decay, decoupled, maximize
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
