// AFTER: the same program with torchamp's scaler and autocast, line by line. With amp::initialize,
// as in ../lstm, it would be even shorter.
#pragma once

#include <torch/nn/functional/loss.h>
#include <torchamp/amp.h>

#include "problem.h"

/// The loss, computed under autocast that ends when this returns or throws.
inline torch::Tensor autocast_loss(Net& net, const Problem& problem) {
  const amp::autocast casting(problem.inputs.device().type(), torch::kHalf);
  return torch::nn::functional::mse_loss(net->forward(problem.inputs), problem.targets);
}

/// Trains, and returns the steps.
inline std::vector<Step> train_after(Net net, const Problem& problem, int64_t steps) {
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(kLearningRate));
  amp::GradScaler scaler(problem.inputs.device(), kFirstLossScale);
  std::vector<Step> done;
  for (int64_t i = 0; i < steps; ++i) {
    adam.zero_grad();
    const torch::Tensor loss = autocast_loss(net, problem);
    const double loss_scale = scaler.get_scale();
    scaler.scale(loss).backward();
    const bool stepped = scaler.step(adam);  // skipped if any grad is not finite
    scaler.update();                         // backs off, grows, and can be saved
    done.push_back({i, loss.item<float>(), loss_scale, !stepped});
  }
  return done;
}
