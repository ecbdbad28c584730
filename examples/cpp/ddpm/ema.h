// A moving average of the weights, which samples better than the weights of the last step.
#pragma once

#include <torch/nn/module.h>
#include <torchamp/amp.h>

#include <vector>

/// Averages an optimizer's masters, in float32: what a float16 model's own weights move by in one
/// step is mostly lost in their rounding, and an average of those would not move at all.
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

  /// Writes the averages into a module of the same parameters.
  void copy_to(torch::nn::Module& module) const {
    torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> params = module.parameters();
    for (size_t i = 0; i < averages_.size(); ++i) params[i].copy_(averages_[i]);
  }

 private:
  double decay_;
  std::vector<torch::Tensor> averages_;
};
