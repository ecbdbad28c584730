// One element of stochastic gradient descent, as in torch.optim.SGD.
#pragma once

#include "math/optim/coefficients.h"

namespace torchamp {

struct Sgd : OneStep {
  static constexpr int kStates = 0;
  static constexpr const char* kStateNames = "";

  template <class T>
  struct HyperOf {
    T lr, momentum, dampening, weight_decay, nesterov, maximize, decay_after_momentum;
  };
  using Hyper = HyperOf<double>;

  struct Coefficients {
    float grad_factor, l2, momentum, undampened, look_ahead, late_l2, lr;
  };

  TORCHAMP_MATH static Coefficients coefficients(const Hyper& hyper, const StepTensor& tensor) {
    const bool late = hyper.decay_after_momentum != 0.0;
    const bool first = tensor.step <= 1.0;
    Coefficients c;
    c.grad_factor = static_cast<float>(signed_factor(tensor, hyper.maximize != 0.0));
    c.l2 = static_cast<float>(late ? 0.0 : hyper.weight_decay);
    c.momentum = static_cast<float>(hyper.momentum);
    c.undampened = static_cast<float>(first ? 1.0 : 1.0 - hyper.dampening);
    c.look_ahead = static_cast<float>(hyper.nesterov != 0.0 ? hyper.momentum : 0.0);
    c.late_l2 = static_cast<float>(late ? hyper.weight_decay : 0.0);
    c.lr = static_cast<float>(hyper.lr);
    return c;
  }

  TORCHAMP_MATH static float step(const Coefficients& c, float grad, float param, float*) {
    const float g = fmaf(c.l2, param, grad * c.grad_factor);
    return fmaf(-c.lr, fmaf(c.late_l2, param, g), param);
  }
};

struct Momentum : Sgd {
  static constexpr int kStates = 1;
  static constexpr const char* kStateNames = "momentum_buffer";

  TORCHAMP_MATH static Coefficients coefficients(const Hyper& hyper, const StepTensor& tensor) {
    Coefficients c = Sgd::coefficients(hyper, tensor);
    if (tensor.step <= 1.0) c.momentum = 0.0f;
    return c;
  }

  TORCHAMP_MATH static float step(const Coefficients& c, float grad, float param, float* states) {
    const float g = fmaf(c.l2, param, grad * c.grad_factor);
    states[0] = flushed(fmaf(c.undampened, g, c.momentum * states[0]));
    const float direction = c.look_ahead != 0.0f ? fmaf(c.look_ahead, states[0], g) : states[0];
    return fmaf(-c.lr, fmaf(c.late_l2, param, direction), param);
  }
};

}  // namespace torchamp
