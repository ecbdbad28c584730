// One element of Adam (Kingma and Ba, arXiv:1412.6980) and AdamW (Loshchilov and Hutter,
// arXiv:1711.05101), as in torch.optim.
#pragma once

#include "math/optim/coefficients.h"

namespace torchamp {

struct Adam : OneStep {
  static constexpr int kStates = 2;
  static constexpr const char* kStateNames = "exp_avg exp_avg_sq";

  template <class T>
  struct HyperOf {
    T lr, beta1, beta2, eps, weight_decay, decoupled, maximize, bias_correction;
  };
  using Hyper = HyperOf<double>;

  struct Coefficients {
    float grad_factor, l2, decay, one_minus_beta1, beta2, one_minus_beta2, root_factor, eps,
        step_size;
  };

  TORCHAMP_MATH static Coefficients coefficients(const Hyper& hyper, const StepTensor& tensor) {
    const bool corrects = hyper.bias_correction != 0.0;
    const bool decoupled = hyper.decoupled != 0.0;
    const double correction1 = bias_correction(hyper.beta1, tensor, corrects);
    const double correction2 = bias_correction(hyper.beta2, tensor, corrects);
    Coefficients c;
    c.grad_factor = static_cast<float>(signed_factor(tensor, hyper.maximize != 0.0));
    c.l2 = static_cast<float>(decoupled ? 0.0 : hyper.weight_decay);
    c.decay = static_cast<float>(decoupled ? 1.0 - hyper.lr * hyper.weight_decay : 1.0);
    c.one_minus_beta1 = static_cast<float>(1.0 - hyper.beta1);
    c.beta2 = static_cast<float>(hyper.beta2);
    c.one_minus_beta2 = static_cast<float>(1.0 - hyper.beta2);
    c.root_factor = static_cast<float>(1.0 / sqrt(correction2));
    c.eps = static_cast<float>(hyper.eps);
    c.step_size = static_cast<float>(hyper.lr / correction1);
    return c;
  }

  TORCHAMP_MATH static float step(const Coefficients& c, float grad, float param, float* states) {
    const float g = fmaf(c.l2, param, grad * c.grad_factor);
    states[0] = flushed(fmaf(c.one_minus_beta1, g - states[0], states[0]));
    states[1] = flushed(fmaf(c.one_minus_beta2 * g, g, c.beta2 * states[1]));
    const float root = fmaf(sqrtf(states[1]), c.root_factor, c.eps);
    return fmaf(-c.step_size, states[0] / root, param * c.decay);
  }
};

}  // namespace torchamp
