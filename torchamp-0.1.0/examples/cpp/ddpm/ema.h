// An exponential moving average (EMA) of the weights, which samples better than the last weights.
#pragma once

#include <torch/nn/module.h>
#include <torchamp/amp.h>

#include <vector>

/// Averages an optimizer's masters in float32. Float16 weights round away most of a step's change,
/// so an average of the model's own weights would hardly move.
class Ema {
 public:
  Ema(const amp::Optimizer& optimizer, double decay) : decay_(decay) {
    for (const torch::Tensor& master : amp::master_params(optimizer)) {
      averages_.push_back(master.detach().to(torch::kFloat, /*non_blocking=*/false, /*copy=*/true));
    }
  }

  void update(const amp::Optimizer& optimizer) {
    torch::NoGradGuard no_grad;
    const std::vector<torch::Tensor> masters = amp::master_params(optimizer);
    for (size_t i = 0; i < averages_.size(); ++i) averages_[i].lerp_(masters[i], 1 - decay_);
  }

  /// Copies the averages to a module with the same parameters.
  void copy_to(torch::nn::Module& module) const {
    torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> params = module.parameters();
    for (size_t i = 0; i < averages_.size(); ++i) params[i].copy_(averages_[i]);
  }

 private:
  double decay_;
  std::vector<torch::Tensor> averages_;
};
