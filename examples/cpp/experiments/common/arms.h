// Ways to train: float32, autocast with and without a loss scale, and torchamp's opt levels.
#pragma once

#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torchamp/amp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "digits.h"
#include "sizes.h"

using OptimizerPtr = std::shared_ptr<torch::optim::Optimizer>;

struct Arm {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor&)> model;  ///< images → logits
  std::function<bool(const torch::Tensor&)> update;  ///< by a loss; returns whether it stepped
  OptimizerPtr optimizer;
  bool has_masters = false;
  bool autocast = false;  ///< to float16, while the model is called

  /// Enters autocast in this thread, if the arm has it.
  void enter(std::optional<amp::autocast>& casts, torch::Device device) const {
    if (autocast) casts.emplace(device.type(), torch::kHalf);
  }

  /// The memory of training on batches like this one, after a step. Calls the model in this thread.
  Sizes sizes(const torch::Tensor& images) const {
    return count_sizes(*module, *optimizer, has_masters, [&] { return model(images.clone()); });
  }
};

inline OptimizerPtr make_sgd(const torch::nn::Module& net, double learning_rate, double momentum) {
  const auto options = torch::optim::SGDOptions(learning_rate).momentum(momentum);
  return std::make_shared<torch::optim::SGD>(net.parameters(), options);
}

/// Without any casts.
template <class Net>
Arm float32_arm(Net net, OptimizerPtr optimizer) {
  Arm arm;
  arm.module = net.ptr();
  arm.optimizer = optimizer;
  arm.model = [net](const torch::Tensor& images) mutable { return net->forward(images); };
  arm.update = [optimizer](const torch::Tensor& loss) {
    optimizer->zero_grad();
    loss.backward();
    optimizer->step();
    return true;
  };
  return arm;
}

/// Casts to float16, without a loss scale.
template <class Net>
Arm autocast_arm(Net net, OptimizerPtr optimizer) {
  Arm arm = float32_arm(net, optimizer);
  arm.autocast = true;
  return arm;
}

/// torch.amp's loop. LibTorch has neither its autocast nor its GradScaler: both are torchamp's.
template <class Net>
Arm native_arm(Net net, OptimizerPtr optimizer) {
  Arm arm = autocast_arm(net, optimizer);
  const auto scaler = std::make_shared<amp::GradScaler>();
  arm.update = [optimizer, scaler](const torch::Tensor& loss) {
    optimizer->zero_grad();
    scaler->scale(loss).backward();
    const bool stepped = scaler->step(*optimizer);
    scaler->update();
    return stepped;
  };
  return arm;
}

/// torchamp's loop at a level.
template <class Net>
Arm amp_arm(Net net, OptimizerPtr optimizer, const std::string& level) {
  const auto amped = amp::initialize(net, optimizer, amp::Options(level).verbosity(0));
  Arm arm;
  arm.module = net.ptr();
  arm.optimizer = optimizer;
  arm.has_masters = amped.optimizer.amp()->properties().master_weights.value_or(false);
  arm.model = [model = amped.model](const torch::Tensor& images) { return model(images); };
  arm.update = [optimizer = amped.optimizer](const torch::Tensor& loss) mutable {
    optimizer.zero_grad();
    amp::scale_loss(loss, optimizer).backward();
    return optimizer.step();
  };
  return arm;
}

struct StepResult {
  double loss;
  bool skipped;
};

/// One step on one batch. `call(model, images)` runs the model.
template <class Call>
StepResult train_step(const Arm& arm, const Digits& batch, Call&& call) {
  torch::Tensor loss;
  {
    std::optional<amp::autocast> casts;
    arm.enter(casts, batch.images.device());
    loss = torch::nn::functional::cross_entropy(call(arm.model, batch.images), batch.labels);
  }
  const bool stepped = arm.update(loss);
  return {loss.item<double>(), !stepped};
}

inline StepResult train_step(const Arm& arm, const Digits& batch) {
  return train_step(arm, batch,
                    [](const auto& model, const auto& images) { return model(images); });
}

/// The fraction of correct classes, a batch at a time.
inline double accuracy(const Arm& arm, const Digits& images, int64_t batch) {
  const torch::NoGradGuard no_grad;
  std::optional<amp::autocast> casts;
  arm.enter(casts, images.images.device());
  arm.module->eval();
  int64_t correct = 0;
  for (const torch::Tensor& rows : torch::arange(images.labels.size(0)).split(batch)) {
    const Digits part = take(images, rows);
    correct += arm.model(part.images).argmax(1).eq(part.labels).sum().item<int64_t>();
  }
  arm.module->train();
  return static_cast<double>(correct) / static_cast<double>(images.labels.size(0));
}

/// The memory of training on batches like this one, called in this thread.
inline Sizes count_sizes(const Arm& arm, const torch::Tensor& images) {
  std::optional<amp::autocast> casts;
  arm.enter(casts, images.device());
  return arm.sizes(images);
}
