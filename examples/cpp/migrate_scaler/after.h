// AFTER: the same program with torchamp.
#pragma once

#include <torch/nn/functional/loss.h>
#include <torchamp/amp.h>

#include "problem.h"

/// Trains, and returns the steps.
inline std::vector<Step> train_after(Net net, const Problem& problem, int64_t steps) {
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(kLearningRate));
  auto amped = amp::initialize(net, adam, amp::Options("O1").verbosity(0));
  auto& [model, optimizer] = amped;
  amp::LossScaler& scaler = model.amp()->loss_scaler();
  scaler.set_loss_scale(kFirstLossScale);  // for the comparison; leave it at its default otherwise
  std::vector<Step> done;
  for (int64_t i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    const torch::Tensor loss =
        torch::nn::functional::mse_loss(model(problem.inputs), problem.targets);
    const double loss_scale = scaler.loss_scale();
    {
      amp::scale_loss scaled_loss(loss, optimizer);
      scaled_loss.backward();
    }
    const bool stepped = optimizer.step();
    done.push_back({i, loss.item<float>(), loss_scale, !stepped});
  }
  return done;
}
