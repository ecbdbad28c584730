// A step's scalars: computes a tensor's coefficients from its group's hyperparameters.
#pragma once

#include "math/optim/adam.h"
#include "math/optim/lamb.h"
#include "math/optim/novograd.h"
#include "math/optim/sgd.h"
#include "math/rounding.h"
#include "math/types.h"

/// Every algorithm, once: AS(DO, Name, name). Its kernels have the name, and Python, in capitals.
#define TORCHAMP_ALGORITHMS_AS(AS, DO) \
  AS(DO, Adam, adam)                   \
  AS(DO, Sgd, sgd)                     \
  AS(DO, Momentum, momentum)           \
  AS(DO, NovoGrad, novograd)           \
  AS(DO, LambUpdate, lamb)             \
  AS(DO, LambApply, lamb_apply)

/// DO(Name, name) for each.
#define TORCHAMP_BY_NAMES(DO, Name, name) DO(Name, name)
#define TORCHAMP_ALGORITHMS(DO) TORCHAMP_ALGORITHMS_AS(TORCHAMP_BY_NAMES, DO)

namespace torchamp {

enum class Algorithm : uint8 {
#define TORCHAMP_NAME(Name, name) k##Name,
  TORCHAMP_ALGORITHMS(TORCHAMP_NAME)
#undef TORCHAMP_NAME
};

/// Doubles in a group's row of hyperparameters; each Hyper takes the first of them.
constexpr int kHyperSize = 12;

/// A group's hyperparameters. They are passed by value, so that a captured launch keeps them;
/// those on the device are read there when the step runs.
struct HyperRow {
  double values[kHyperSize];
  const double* on_device = nullptr;  ///< overrides values
  const void* lr = nullptr;           ///< overrides the first
  bool lr_is_double = false;          ///< else float
};

/// A step's other arguments, in the memory of their device. Arrays
/// are by caller's position. May be null: grad_factor (1), skip (0), and the norms.
struct StepInputs {
  float* steps;  ///< incremented
  const float* grad_factor;
  const float* skip;  ///< nothing is written unless 0
  const float* param_norms;
  const float* update_norms;
  float* norm_averages;
  bool stochastic_rounding;  ///< how bfloat16 parameters are rounded; states always are
                             ///< stochastically
};

TORCHAMP_MATH bool skips(const StepInputs& inputs) {
  return is_set(inputs.skip);
}

/// A tensor that is stepped: its index in the caller's arrays, its group's hyperparameters,
/// and whether its grad is exempt from grad_factor.
struct Stepped {
  int32 position;
  const HyperRow* row;
  bool unscaled;
};

TORCHAMP_MATH double lr_of(const HyperRow& row) {
  return row.lr_is_double ? *static_cast<const double*>(row.lr)
                          : static_cast<double>(*static_cast<const float*>(row.lr));
}

/// Every Hyper begins with the learning rate.
template <class Rule>
TORCHAMP_MATH typename Rule::Hyper hyper_of(const HyperRow& row) {
  using Hyper = typename Rule::Hyper;
  static_assert(sizeof(Hyper) <= sizeof(row.values), "rows are too short");
  const double* const values = row.on_device != nullptr ? row.on_device : row.values;
  Hyper hyper = *reinterpret_cast<const Hyper*>(values);
  if (row.lr != nullptr) hyper.lr = lr_of(row);
  return hyper;
}

/// The number of the current step. Steps are counted at its end.
template <class Rule>
TORCHAMP_MATH float step_number(const StepInputs& inputs, int32 position) {
  return inputs.steps[position] + (Rule::kCounts ? 1.0f : 0.0f);
}

TORCHAMP_MATH double number_at(const float* row, int32 position) {
  return row == nullptr ? 0.0 : row[position];
}

template <class Rule>
TORCHAMP_MATH StepTensor step_tensor(const StepInputs& inputs, Stepped stepped) {
  StepTensor tensor;
  tensor.step = step_number<Rule>(inputs, stepped.position);
  tensor.grad_factor =
      inputs.grad_factor == nullptr || stepped.unscaled ? 1.0 : *inputs.grad_factor;
  tensor.param_norm = number_at(inputs.param_norms, stepped.position);
  tensor.update_norm = number_at(inputs.update_norms, stepped.position);
  tensor.norm_average = number_at(inputs.norm_averages, stepped.position);
  return tensor;
}

template <class Rule>
TORCHAMP_MATH typename Rule::Coefficients coefficients(const StepInputs& inputs, Stepped stepped) {
  return Rule::coefficients(hyper_of<Rule>(*stepped.row), step_tensor<Rule>(inputs, stepped));
}

template <class Rule>
TORCHAMP_MATH uint32 noise_key(const StepInputs& inputs, int32 position) {
  return noise_key(position, step_number<Rule>(inputs, position));
}

/// Ends a tensor's step, after its last element: counts it, and updates its running norm.
template <class Rule>
TORCHAMP_MATH void finish_step(const StepInputs& inputs, Stepped stepped) {
  if constexpr (Rule::kAverages) {
    const double average =
        Rule::average_norm(hyper_of<Rule>(*stepped.row), step_tensor<Rule>(inputs, stepped));
    inputs.norm_averages[stepped.position] = static_cast<float>(average);
  }
  inputs.steps[stepped.position] = step_number<Rule>(inputs, stepped.position);
}

/// Whether two tensors have the same coefficients: they are of one group, have taken as many steps,
/// and depend neither on their own norms nor on a factor.
TORCHAMP_MATH bool share_coefficients(const StepInputs& inputs, Stepped one, Stepped other) {
  return inputs.param_norms == nullptr && inputs.update_norms == nullptr &&
         one.unscaled == other.unscaled && one.row == other.row &&
         inputs.steps[one.position] == inputs.steps[other.position];
}

}  // namespace torchamp
