// BEFORE: a typical hand-written scaler of a LibTorch program, with common mistakes. Do not copy
// it.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/nn/functional/loss.h>

#include "problem.h"

class HandRolledScaler {
 public:
  explicit HandRolledScaler(double scale) : scale_(scale) {}

  torch::Tensor scale(const torch::Tensor& loss) const { return loss * scale_; }

  /// Returns whether all grads were finite.
  bool step(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& params) {
    bool finite = true;
    for (const torch::Tensor& param : params) {
      torch::Tensor grad = param.grad();
      grad.mul_(1 / scale_);
      const bool is_finite = grad.isfinite().all().item<bool>();  // mistake: waits for every grad
      if (!is_finite) grad.mul_(0);                               // mistake: inf · 0 is NaN
      finite &= is_finite;
    }
    optimizer.step();                       // mistake: steps anyway, and pollutes the moments
    scale_ = finite ? scale_ : scale_ / 2;  // mistake: never grows, may reach 0, is never saved
    return finite;
  }

  double loss_scale() const { return scale_; }

 private:
  double scale_;
};

/// Trains, and returns the steps.
inline std::vector<Step> train_before(Net net, const Problem& problem, int64_t steps) {
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(kLearningRate));
  HandRolledScaler scaler(kFirstLossScale);
  const at::DeviceType device = problem.inputs.device().type();
  std::vector<Step> done;
  for (int64_t i = 0; i < steps; ++i) {
    adam.zero_grad();
    at::autocast::set_autocast_dtype(device, torch::kHalf);
    at::autocast::set_autocast_enabled(device, true);
    const torch::Tensor loss =
        torch::nn::functional::mse_loss(net->forward(problem.inputs), problem.targets);
    const double loss_scale = scaler.loss_scale();
    scaler.scale(loss).backward();  // mistake: still under autocast, and its cache is never cleared
    const bool finite = scaler.step(adam, net->parameters());
    done.push_back({i, loss.item<float>(), loss_scale, !finite});
  }
  at::autocast::clear_cache();  // so that "after" is not affected
  at::autocast::set_autocast_enabled(device, false);
  return done;
}
