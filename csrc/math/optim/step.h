// A step's scalars, on their way from a group's hyperparameters to a tensor's coefficients.
#pragma once

#include "math/optim/adagrad.h"
#include "math/optim/adam.h"
#include "math/optim/lamb.h"
#include "math/optim/novograd.h"
#include "math/optim/sgd.h"
#include "math/rounding.h"

/// Every algorithm, once: DO(Name, name).
#define TORCHAMP_ALGORITHMS(DO) \
  DO(Adam, adam)                \
  DO(AmsGrad, ams_grad)         \
  DO(Sgd, sgd)                  \
  DO(Momentum, momentum)        \
  DO(Adagrad, adagrad)          \
  DO(NovoGrad, novo_grad)       \
  DO(LambUpdate, lamb_update)   \
  DO(LambApply, lamb_apply)

namespace torchamp {

enum class Algorithm : uint8 {
#define TORCHAMP_NAME(Name, name) k##Name,
  TORCHAMP_ALGORITHMS(TORCHAMP_NAME)
#undef TORCHAMP_NAME
};

/// Doubles in a group's row of hyperparameters; each Hyper takes the first of them.
constexpr int kHyperSize = 12;
/// Floats in a tensor's row of coefficients.
constexpr int kCoefficientsSize = 12;

/// What a step reads besides its tensors, in the memory of their device. Arrays are by caller's
/// position. May be null: grad_factor (1), skip (0), and the norms.
struct StepInputs {
  float* steps;         ///< counted up
  const double* hyper;  ///< rows of kHyperSize
  const int32* groups;  ///< a row of hyper for each position
  float* coefficients;  ///< rows of kCoefficientsSize, for the kernels' own use
  const float* grad_factor;
  const float* skip;  ///< nothing is written unless 0
  const float* param_norms;
  const float* update_norms;
  float* norm_averages;
  bool params_by_chance;  ///< how bfloat16 parameters are rounded; states always are by chance
};

TORCHAMP_MATH bool skips(const StepInputs& inputs) {
  return inputs.skip != nullptr && *inputs.skip != 0.0f;
}

template <class Rule>
TORCHAMP_MATH typename Rule::Coefficients* coefficients_at(const StepInputs& inputs,
                                                           int32 position) {
  using Coefficients = typename Rule::Coefficients;
  static_assert(sizeof(Coefficients) <= kCoefficientsSize * sizeof(float), "rows are too short");
  return reinterpret_cast<Coefficients*>(inputs.coefficients + int64{position} * kCoefficientsSize);
}

template <class Rule>
TORCHAMP_MATH const typename Rule::Hyper& hyper_at(const StepInputs& inputs, int32 position) {
  using Hyper = typename Rule::Hyper;
  static_assert(sizeof(Hyper) <= kHyperSize * sizeof(double), "rows are too short");
  return *reinterpret_cast<const Hyper*>(inputs.hyper +
                                         int64{inputs.groups[position]} * kHyperSize);
}

template <class Rule>
TORCHAMP_MATH void count_step(const StepInputs& inputs, int32 position) {
  if (Rule::kCounts) inputs.steps[position] += 1.0f;
}

/// Works out a tensor's coefficients.
template <class Rule>
TORCHAMP_MATH void prepare(const StepInputs& inputs, int32 position) {
  StepTensor tensor;
  tensor.step = inputs.steps[position];
  tensor.grad_factor = inputs.grad_factor == nullptr ? 1.0 : *inputs.grad_factor;
  tensor.param_norm = inputs.param_norms == nullptr ? 0.0 : inputs.param_norms[position];
  tensor.update_norm = inputs.update_norms == nullptr ? 0.0 : inputs.update_norms[position];
  tensor.norm_average = inputs.norm_averages == nullptr ? nullptr : inputs.norm_averages + position;
  *coefficients_at<Rule>(inputs, position) =
      Rule::coefficients(hyper_at<Rule>(inputs, position), tensor);
}

/// After the step was counted.
TORCHAMP_MATH uint32 noise_key(const StepInputs& inputs, int32 position) {
  return noise_key(position, inputs.steps[position]);
}

/// Whether two tensors have the same coefficients: they are of one group, have taken as many steps,
/// and no norm of their own plays a part.
TORCHAMP_MATH bool share_coefficients(const StepInputs& inputs, int32 position, int32 other) {
  return inputs.param_norms == nullptr && inputs.update_norms == nullptr &&
         inputs.groups[position] == inputs.groups[other] &&
         inputs.steps[position] == inputs.steps[other];
}

}  // namespace torchamp
