// BEFORE: a typical hand-written scaler of a LibTorch program, with common mistakes. Do not copy
// it.
#pragma once

#include <ATen/autocast_mode.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>

#include <vector>

class HandRolledScaler {
 public:
  explicit HandRolledScaler(double scale) : scale_(scale) {}

  torch::Tensor scale(const torch::Tensor& loss) const { return loss * scale_; }

  void step(torch::optim::Optimizer& optimizer, const std::vector<torch::Tensor>& params) {
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
  }

 private:
  double scale_;
};

/// Trains, and returns the last loss.
inline float train_before(torch::nn::Sequential net, const torch::Tensor& inputs,
                          const torch::Tensor& targets, int64_t steps) {
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-2));
  HandRolledScaler scaler(1 << 24);
  const at::DeviceType device = inputs.device().type();
  torch::Tensor loss;
  for (int64_t i = 0; i < steps; ++i) {
    adam.zero_grad();
    at::autocast::set_autocast_dtype(device, torch::kHalf);
    at::autocast::set_autocast_enabled(device, true);
    loss = torch::nn::functional::mse_loss(net->forward(inputs), targets);
    scaler.scale(loss).backward();  // mistake: still under autocast, and its cache is never cleared
    scaler.step(adam, net->parameters());
  }
  at::autocast::clear_cache();  // so that "after" is not affected
  at::autocast::set_autocast_enabled(device, false);
  return loss.item<float>();
}
