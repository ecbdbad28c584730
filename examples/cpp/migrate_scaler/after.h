// AFTER: the same program with torchamp's scaler and autocast, line by line. With amp::initialize,
// as in ../lstm, it would be even shorter.
#pragma once

#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torchamp/amp.h>

#include <ostream>

/// The loss, computed under autocast that ends when this returns or throws.
inline torch::Tensor autocast_loss(torch::nn::Sequential& net, const torch::Tensor& inputs,
                                   const torch::Tensor& targets) {
  const amp::autocast casting(inputs.device().type(), torch::kHalf);
  return torch::nn::functional::mse_loss(net->forward(inputs), targets);
}

/// Trains, writes a line per step, and returns the last loss.
inline float train_after(torch::nn::Sequential net, const torch::Tensor& inputs,
                         const torch::Tensor& targets, int64_t steps, std::ostream& csv) {
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-2));
  amp::GradScaler scaler(1 << 24);
  torch::Tensor loss;
  for (int64_t i = 0; i < steps; ++i) {
    adam.zero_grad();
    loss = autocast_loss(net, inputs, targets);
    const double loss_scale = scaler.get_scale();
    scaler.scale(loss).backward();
    const bool stepped = scaler.step(adam);  // skipped if any grad is not finite
    scaler.update();                         // backs off, grows, and can be saved
    csv << i << ',' << loss.item<float>() << ',' << loss_scale << ',' << !stepped << '\n';
  }
  return loss.item<float>();
}
