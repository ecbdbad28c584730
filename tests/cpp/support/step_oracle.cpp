#include "step_oracle.h"

#include <cmath>

namespace torchamp::oracle {
namespace {

double corrected(double average, double beta, const StepOptions& o, const StepTensor& t) {
  return o.bias_correction ? average / (1 - std::pow(beta, t.step)) : average;
}

void adam(const StepOptions& o, const StepTensor& t, StepElement& e) {
  double &average = e.states[0], &squares = e.states[1];
  if (!o.decoupled) e.grad += o.weight_decay * e.param;
  if (o.decoupled) e.param -= o.lr * o.weight_decay * e.param;
  average = o.beta1 * average + (1 - o.beta1) * e.grad;
  squares = o.beta2 * squares + (1 - o.beta2) * e.grad * e.grad;
  const double root = std::sqrt(corrected(squares, o.beta2, o, t));
  e.param -= o.lr * corrected(average, o.beta1, o, t) / (root + o.eps);
}

void sgd(const StepOptions& o, const StepTensor& t, StepElement& e, bool has_momentum) {
  if (!o.decay_after_momentum) e.grad += o.weight_decay * e.param;
  double direction = e.grad;
  if (has_momentum) {
    double& buffer = e.states[0];
    buffer = t.step == 1 ? direction : o.momentum * buffer + (1 - o.dampening) * direction;
    direction = o.nesterov ? direction + o.momentum * buffer : buffer;
  }
  if (o.decay_after_momentum) direction += o.weight_decay * e.param;
  e.param -= o.lr * direction;
}

void novo_grad(const StepOptions& o, const StepTensor& t, StepElement& e) {
  const double correction = o.bias_correction ? std::sqrt(1 - std::pow(o.beta2, t.step)) : 1;
  const double divisor = t.norm_average / correction + o.eps;
  const double share = o.averages_grads ? 1 - o.beta1 : 1;
  if (o.decay_in_moment) e.grad = e.grad / divisor + o.weight_decay * e.param;
  e.states[0] = o.beta1 * e.states[0] + share * e.grad;
  double update = corrected(e.states[0], o.beta1, o, t);
  if (!o.decay_in_moment) update = update / divisor + o.weight_decay * e.param;
  e.param -= o.lr * update;
}

void lamb_update(const StepOptions& o, const StepTensor& t, StepElement& e) {
  auto& [average, squares, update] = e.states;
  if (!o.decoupled) e.grad += o.weight_decay * e.param;
  average = o.beta1 * average + (o.averages_grads ? 1 - o.beta1 : 1) * e.grad;
  squares = o.beta2 * squares + (1 - o.beta2) * e.grad * e.grad;
  const double root = std::sqrt(corrected(squares, o.beta2, o, t));
  update = corrected(average, o.beta1, o, t) / (root + o.eps);
  if (o.decoupled) update += o.weight_decay * e.param;
}

void lamb_apply(const StepOptions& o, const StepTensor& t, StepElement& e) {
  const bool adapts = (o.always_adapts || o.weight_decay != 0) && t.param_norm != 0;
  const double ratio = adapts && t.update_norm != 0 ? t.param_norm / t.update_norm : 1;
  e.param -= o.lr * ratio * e.grad;
}

}  // namespace

std::vector<double> hyper_row(StepAlgorithm algorithm, const StepOptions& o) {
  std::vector<double> row;
  switch (algorithm) {
    case StepAlgorithm::kAdam:
      row = {o.lr,           o.beta1,           o.beta2,          o.eps,
             o.weight_decay, 1.0 * o.decoupled, 1.0 * o.maximize, 1.0 * o.bias_correction};
      break;
    case StepAlgorithm::kSgd:
    case StepAlgorithm::kMomentum:
      row = {o.lr,
             o.momentum,
             o.dampening,
             o.weight_decay,
             1.0 * o.nesterov,
             1.0 * o.maximize,
             1.0 * o.decay_after_momentum};
      break;
    case StepAlgorithm::kNovoGrad:
      row = {o.lr,
             o.beta1,
             o.beta2,
             o.eps,
             o.weight_decay,
             1.0 * o.maximize,
             1.0 * o.bias_correction,
             1.0 * o.decay_in_moment,
             1.0 * o.averages_grads,
             1.0 * o.starts_at_zero};
      break;
    case StepAlgorithm::kLambUpdate:
    case StepAlgorithm::kLambApply:
      row = {o.lr,
             o.beta1,
             o.beta2,
             o.eps,
             o.weight_decay,
             1.0 * o.decoupled,
             1.0 * o.maximize,
             1.0 * o.bias_correction,
             1.0 * o.averages_grads,
             1.0 * o.always_adapts};
  }
  row.resize(kHyperparameters, NAN);
  return row;
}

double norm_average(const StepOptions& o, const StepTensor& t, double before) {
  if (t.step == 1 && !o.starts_at_zero) return t.update_norm;
  return std::sqrt(o.beta2 * before * before + (1 - o.beta2) * t.update_norm * t.update_norm);
}

void step(StepAlgorithm algorithm, const StepOptions& o, const StepTensor& t, StepElement& e) {
  if (o.maximize && algorithm != StepAlgorithm::kLambApply) e.grad = -e.grad;
  switch (algorithm) {
    case StepAlgorithm::kAdam:
      return adam(o, t, e);
    case StepAlgorithm::kSgd:
      return sgd(o, t, e, false);
    case StepAlgorithm::kMomentum:
      return sgd(o, t, e, true);
    case StepAlgorithm::kNovoGrad:
      return novo_grad(o, t, e);
    case StepAlgorithm::kLambUpdate:
      return lamb_update(o, t, e);
    case StepAlgorithm::kLambApply:
      return lamb_apply(o, t, e);
  }
}

}  // namespace torchamp::oracle
