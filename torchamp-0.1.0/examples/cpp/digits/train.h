// Training and testing: the part that uses torchamp.
#pragma once

#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torchamp/amp.h>

#include <chrono>
#include <vector>

#include "digits.h"
#include "digits_net.h"
#include "report.h"

constexpr int64_t kBatchSize = 64;
constexpr double kLearningRate = 0.05;
constexpr double kMomentum = 0.875;  // exact in float16, to which LibTorch's SGD rounds it at O3
constexpr double kFirstLossScale = 1 << 24;  // too high for float16: the first steps overflow

using AmpedNet = amp::Amped<Net>;

/// One step on one batch.
inline Step train_step(AmpedNet& amped, const Digits& batch) {
  auto& [model, optimizer] = amped;
  const double loss_scale = model.amp()->loss_scaler().loss_scale();
  optimizer.zero_grad();
  const torch::Tensor loss =
      torch::nn::functional::cross_entropy(model(batch.images), batch.labels);
  amp::scale_loss(loss, optimizer).backward();
  const bool stepped = optimizer.step();
  return {0, loss.item<float>(), loss_scale, !stepped};
}

inline int64_t steps_per_epoch(const Digits& train) {
  return (train.labels.size(0) + kBatchSize - 1) / kBatchSize;
}

/// Calls `on_step(step, seconds)` after each step.
template <class OnStep>
void train(AmpedNet& amped, const Digits& digits, int64_t epochs, OnStep&& on_step) {
  using Clock = std::chrono::steady_clock;
  int64_t index = 0;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (const auto& rows : torch::randperm(digits.labels.size(0)).split(kBatchSize)) {
      const auto start = Clock::now();
      Step step = train_step(amped, take(digits, rows));
      step.index = index++;
      on_step(step, std::chrono::duration<double>(Clock::now() - start).count());
    }
  }
}

/// The fraction of `digits` that the model classifies correctly.
inline double accuracy(AmpedNet& amped, const Digits& digits) {
  torch::NoGradGuard no_grad;
  amped.model->eval();
  const torch::Tensor predicted = amped.model(digits.images).argmax(1);
  return predicted.eq(digits.labels).to(torch::kDouble).mean().item<double>();
}
