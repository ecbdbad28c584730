// Shared by the optimizers' steps: computes the few floats that a tensor's elements need from its
// group's hyperparameters and its step count.
//
// An algorithm is a struct with
//   kStates                 how many tensors of state a step takes for a parameter
//   kStateNames             those that are kept from step to step, separated by spaces
//   kCounts                 whether this pass counts the steps; LAMB's second does not, and needs
//                           the norms of parameters and updates
//   kAverages               whether it keeps a running norm of each tensor's grads
//   HyperOf<T>              a group's hyperparameters, true and false as 1 and 0: the names of
//                           fused_step's columns, of which lr is the first
//   Hyper                   those as doubles
//   Coefficients            floats
//   coefficients(hyper, tensor)
//   average_norm(hyper, tensor)               the running norm after this step, if it kAverages
//   step(coefficients, grad, param, states)   one element: returns the new param, updates states
#pragma once

#include "math/float16.h"

namespace torchamp {

/// The defaults of an algorithm.
struct OneStep {
  static constexpr bool kCounts = true;
  static constexpr bool kAverages = false;
};

/// One tensor's arguments of a step.
struct StepTensor {
  double step;          ///< which step this is, from 1
  double grad_factor;   ///< factor of the grads: 1 / loss_scale, clipping
  double param_norm;    ///< of the parameter, if the algorithm uses it
  double update_norm;   ///< of the unscaled grad, or as the algorithm defines it
  double norm_average;  ///< the tensor's running norm before this step, if there is one
};

/// base to the power of a non-negative integer, by squaring: every compiler agrees on the result.
TORCHAMP_MATH double power(double base, double exponent) {
  double result = 1.0;
  for (auto n = static_cast<int64>(exponent); n > 0; n /= 2) {
    if (n % 2 == 1) result *= base;
    base *= base;
  }
  return result;
}

/// 1 - beta^step, the bias of a moment that started at zero.
TORCHAMP_MATH double bias_correction(double beta, const StepTensor& tensor, bool wanted) {
  return wanted ? 1.0 - power(beta, tensor.step) : 1.0;
}

TORCHAMP_MATH double signed_factor(const StepTensor& tensor, bool maximize) {
  return maximize ? -tensor.grad_factor : tensor.grad_factor;
}

/// Replaces subnormals, which cost processors a hundred cycles, by zero: the moments of rows
/// without grads decay to them and would stay there.
TORCHAMP_MATH float flushed(float average) {
  return fabsf(average) < 1.17549435e-38f ? 0.0f : average;
}

}  // namespace torchamp
