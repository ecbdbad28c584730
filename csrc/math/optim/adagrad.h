// One element of Adagrad (Duchi, Hazan and Singer, JMLR 12, 2011), as in torch.optim, and with
// apex's decoupled weight decay.
#pragma once

#include "math/optim/coefficients.h"

namespace torchamp {

struct Adagrad : OneStep {
  static constexpr int kStates = 1;
  static constexpr const char* kStateNames = "sum";

  template <class T>
  struct HyperOf {
    T lr, lr_decay, eps, weight_decay, decoupled, maximize;
  };
  using Hyper = HyperOf<double>;

  struct Coefficients {
    float grad_factor, l2, decay, eps, step_size;
  };

  TORCHAMP_MATH static Coefficients coefficients(const Hyper& hyper, const StepTensor& tensor) {
    const bool decoupled = hyper.decoupled != 0.0;
    const double lr = hyper.lr / (1.0 + (tensor.step - 1.0) * hyper.lr_decay);
    Coefficients c;
    c.grad_factor = static_cast<float>(signed_factor(tensor, hyper.maximize != 0.0));
    c.l2 = static_cast<float>(decoupled ? 0.0 : hyper.weight_decay);
    c.decay = static_cast<float>(decoupled ? 1.0 - lr * hyper.weight_decay : 1.0);
    c.eps = static_cast<float>(hyper.eps);
    c.step_size = static_cast<float>(lr);
    return c;
  }

  TORCHAMP_MATH static float step(const Coefficients& c, float grad, float param, float* states) {
    const float g = fmaf(c.l2, param, grad * c.grad_factor);
    states[0] = fmaf(g, g, states[0]);
    return fmaf(-c.step_size, g / (sqrtf(states[0]) + c.eps), param * c.decay);
  }
};

}  // namespace torchamp
