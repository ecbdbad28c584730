// One element of stochastic gradient descent, as in torch.optim.SGD, and of LARS (You et al.,
// arXiv:1708.03888), which adapts the learning rate to each tensor.
#pragma once

#include "math/optim/coefficients.h"

namespace torchamp {

struct Sgd : OneStep {
  static constexpr int kStates = 0;
  static constexpr const char* kStateNames = "";

  template <class T>
  struct HyperOf {
    T lr, momentum, dampening, weight_decay, nesterov, maximize, decay_after_momentum;
    T trust_coefficient, trust_eps, trust_clip;
  };
  using Hyper = HyperOf<double>;

  struct Coefficients {
    float grad_factor, l2, momentum, undampened, look_ahead, late_l2, lr;
  };

  TORCHAMP_MATH static Coefficients coefficients(const Hyper& hyper, const StepTensor& tensor) {
    const bool late = hyper.decay_after_momentum != 0.0;
    const bool first = tensor.step <= 1.0;
    const double trust = trust_ratio(hyper, tensor);
    Coefficients c;
    c.grad_factor = static_cast<float>(trust * signed_factor(tensor, hyper.maximize != 0.0));
    c.l2 = static_cast<float>(late ? 0.0 : trust * hyper.weight_decay);
    c.momentum = static_cast<float>(hyper.momentum);
    c.undampened = static_cast<float>(first ? 1.0 : 1.0 - hyper.dampening);
    c.look_ahead = static_cast<float>(hyper.nesterov != 0.0 ? hyper.momentum : 0.0);
    c.late_l2 = static_cast<float>(late ? hyper.weight_decay : 0.0);
    c.lr = static_cast<float>(hyper.lr);
    return c;
  }

  /// LARS: the largest update of a tensor relative to its norm. 1 if trust_coefficient or a norm is
  /// 0. With trust_clip the tensor's learning rate is at most the group's (LARC).
  TORCHAMP_MATH static double trust_ratio(const Hyper& hyper, const StepTensor& tensor) {
    if (hyper.trust_coefficient == 0.0) return 1.0;
    if (tensor.param_norm == 0.0 || tensor.update_norm == 0.0) return 1.0;
    const double length = tensor.update_norm + hyper.weight_decay * tensor.param_norm;
    const double rate = hyper.trust_coefficient * tensor.param_norm / (length + hyper.trust_eps);
    if (hyper.trust_clip == 0.0) return rate;
    return rate < hyper.lr ? rate / hyper.lr : 1.0;
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
