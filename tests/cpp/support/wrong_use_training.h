// The nets and optimizers that the tables of mistakes train.
#pragma once

#include <ATen/ops/ones.h>
#include <torchamp/initialize.h>
#include <torchamp/scale_loss.h>

#include "net.h"
#include "wrong_use.h"

namespace torchamp::wrong_use {

using at::Tensor;
using torch::nn::Linear;
using torch::optim::SGD;

/// With a fixed loss scale, to tell scaled grads from others.
inline Options at_level(const char* level) {
  return Options(level).loss_scale(1024.0);
}

/// One layer in training.
template <class O = SGD>
struct Run {
  explicit Run(const Options& options = at_level("O2"))
      : optimizer_given(net->parameters(), 0.1), amped(initialize(net, optimizer_given, options)) {}

  Tensor loss() { return amped.model(at::ones({2, 4})).square().mean(); }
  Optimizer& optimizer() { return amped.optimizer; }
  Amp& amp() { return *amped.model.amp(); }
  void backward() { scale_loss(loss(), optimizer()).backward(); }
  bool step() { return optimizer().step(); }

  Linear net{4, 2};
  O optimizer_given;
  Amped<Linear> amped;
};

}  // namespace torchamp::wrong_use
