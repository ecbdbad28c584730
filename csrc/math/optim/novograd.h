// One element of NovoGrad (Ginsburg et al., arXiv:1905.11286), as in apex's FusedNovoGrad: the
// second moment is one number per tensor, the running norm of its grads.
#pragma once

#include "math/optim/coefficients.h"

namespace torchamp {

struct NovoGrad : OneStep {
  static constexpr int kStates = 1;
  static constexpr const char* kStateNames = "exp_avg";
  static constexpr bool kAverages = true;

  template <class T>
  struct HyperOf {
    T lr, beta1, beta2, eps, weight_decay, maximize, bias_correction;
    T decay_in_moment, averages_grads, starts_at_zero;
  };
  using Hyper = HyperOf<double>;

  struct Coefficients {
    float grad_factor, l2, decay, beta1, share, step_size;
  };

  /// update_norm is that of the tensor's grad.
  TORCHAMP_MATH static Coefficients coefficients(const Hyper& hyper, const StepTensor& tensor) {
    const bool corrects = hyper.bias_correction != 0.0;
    const bool early = hyper.decay_in_moment != 0.0;
    const double correction1 = bias_correction(hyper.beta1, tensor, corrects);
    const double correction2 = sqrt(bias_correction(hyper.beta2, tensor, corrects));
    const double divisor = average_norm(hyper, tensor) / correction2 + hyper.eps;
    const double factor = signed_factor(tensor, hyper.maximize != 0.0);
    Coefficients c;
    c.grad_factor = static_cast<float>(early ? factor / divisor : factor);
    c.l2 = static_cast<float>(early ? hyper.weight_decay : 0.0);
    c.decay = static_cast<float>(early ? 1.0 : 1.0 - hyper.lr * hyper.weight_decay);
    c.beta1 = static_cast<float>(hyper.beta1);
    c.share = static_cast<float>(hyper.averages_grads != 0.0 ? 1.0 - hyper.beta1 : 1.0);
    c.step_size = static_cast<float>(hyper.lr / correction1 / (early ? 1.0 : divisor));
    return c;
  }

  TORCHAMP_MATH static double average_norm(const Hyper& hyper, const StepTensor& tensor) {
    const double now = tensor.update_norm, before = tensor.norm_average;
    const bool starts = tensor.step <= 1.0 && hyper.starts_at_zero == 0.0;
    const double square = hyper.beta2 * before * before + (1.0 - hyper.beta2) * now * now;
    return starts ? now : sqrt(square);
  }

  TORCHAMP_MATH static float step(const Coefficients& c, float grad, float param, float* states) {
    const float g = fmaf(c.l2, param, grad * c.grad_factor);
    states[0] = flushed(fmaf(c.share, g, c.beta1 * states[0]));
    return fmaf(-c.step_size, states[0], param * c.decay);
  }
};

}  // namespace torchamp
