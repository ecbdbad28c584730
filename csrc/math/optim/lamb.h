// One element of LAMB (You et al., arXiv:1904.00962), as in apex's FusedLAMB, in two passes:
// the first stores each tensor's update, whose norm the second needs.
#pragma once

#include "math/optim/coefficients.h"

namespace torchamp {

/// First pass. Does not change the parameter.
struct LambUpdate : OneStep {
  static constexpr int kStates = 3;  ///< the last is the update
  static constexpr const char* kStateNames = "exp_avg exp_avg_sq";

  template <class T>
  struct HyperOf {
    T lr, beta1, beta2, eps, weight_decay, decoupled, maximize, bias_correction;
    T averages_grads, always_adapts, max_grad_norm;
  };
  using Hyper = HyperOf<double>;

  struct Coefficients {
    float grad_factor, l2, late_decay, beta1, share, beta2, one_minus_beta2, average_factor,
        root_factor, eps;
  };

  TORCHAMP_MATH static Coefficients coefficients(const Hyper& hyper, const StepTensor& tensor) {
    const bool corrects = hyper.bias_correction != 0.0;
    const bool decoupled = hyper.decoupled != 0.0;
    const double factor = clipping(hyper, tensor) * signed_factor(tensor, hyper.maximize != 0.0);
    Coefficients c;
    c.grad_factor = static_cast<float>(factor);
    c.l2 = static_cast<float>(decoupled ? 0.0 : hyper.weight_decay);
    c.late_decay = static_cast<float>(decoupled ? hyper.weight_decay : 0.0);
    c.beta1 = static_cast<float>(hyper.beta1);
    c.share = static_cast<float>(hyper.averages_grads != 0.0 ? 1.0 - hyper.beta1 : 1.0);
    c.beta2 = static_cast<float>(hyper.beta2);
    c.one_minus_beta2 = static_cast<float>(1.0 - hyper.beta2);
    c.average_factor = static_cast<float>(1.0 / bias_correction(hyper.beta1, tensor, corrects));
    c.root_factor = static_cast<float>(1.0 / sqrt(bias_correction(hyper.beta2, tensor, corrects)));
    c.eps = static_cast<float>(hyper.eps);
    return c;
  }

  /// update_norm is the total norm of all grads.
  TORCHAMP_MATH static double clipping(const Hyper& hyper, const StepTensor& tensor) {
    const bool clips = hyper.max_grad_norm > 0.0 && tensor.update_norm > hyper.max_grad_norm;
    return clips ? hyper.max_grad_norm / tensor.update_norm : 1.0;
  }

  TORCHAMP_MATH static float step(const Coefficients& c, float grad, float param, float* states) {
    const float g = fmaf(c.l2, param, grad * c.grad_factor);
    states[0] = flushed(fmaf(c.share, g, c.beta1 * states[0]));
    states[1] = flushed(fmaf(c.one_minus_beta2 * g, g, c.beta2 * states[1]));
    const float root = fmaf(sqrtf(states[1]), c.root_factor, c.eps);
    states[2] = fmaf(c.late_decay, param, states[0] * c.average_factor / root);
    return param;
  }
};

/// Second pass; its grad is the first one's update.
struct LambApply {
  static constexpr int kStates = 0;
  static constexpr const char* kStateNames = "";
  static constexpr bool kCounts = false;
  static constexpr bool kAverages = false;

  template <class T>
  using HyperOf = LambUpdate::HyperOf<T>;
  using Hyper = HyperOf<double>;

  struct Coefficients {
    float step_size;
  };

  TORCHAMP_MATH static Coefficients coefficients(const Hyper& hyper, const StepTensor& tensor) {
    const bool adapts = hyper.always_adapts != 0.0 || hyper.weight_decay != 0.0;
    const bool moves = tensor.param_norm != 0.0 && tensor.update_norm != 0.0;
    const double ratio = adapts && moves ? tensor.param_norm / tensor.update_norm : 1.0;
    return {static_cast<float>(hyper.lr * ratio)};
  }

  TORCHAMP_MATH static float step(const Coefficients& c, float update, float param, float*) {
    return fmaf(-c.step_size, update, param);
  }
};

}  // namespace torchamp
