// A network in training.
#pragma once

#include <cmath>
#include <vector>

#include "net.h"

namespace torchamp {

/// A network, an optimizer of it at some level, and one batch.
template <class O>
struct TrainingOf {
  /// `of_own`: the optimizer's options, or its learning rate.
  template <class OfOwn = double>
  TrainingOf(at::Device device, const Options& options, const OfOwn& of_own = 0.1,
             uint64_t seed = 1)
      : net(make_net(device, seed)),
        batch(make_batch(device)),
        own(net->parameters(), of_own),
        amped(initialize(net, own, options)) {}

  at::Tensor loss() { return loss_of(amped.model(batch.data), batch.target); }
  LossScaler& scaler() { return amped.model.amp()->loss_scaler(); }
  Optimizer& optimizer() { return amped.optimizer; }
  void backward() { scale_loss(loss(), optimizer()).backward(); }
  void step() {
    optimizer().zero_grad();
    backward();
    EXPECT_TRUE(optimizer().step());
  }
  /// A backward whose grads overflow.
  void overflow() {
    scale_loss scaled_loss(loss(), optimizer());
    scaled_loss.backward();
    net->last->bias.grad().fill_(INFINITY);
  }

  Net net;
  Batch batch;
  O own;  ///< as initialize was given it
  Amped<Net> amped;
};

/// By momentum, with accessors to its state.
struct Training : TrainingOf<torch::optim::SGD> {
  Training(at::Device device, const Options& options, uint64_t seed = 1)
      : TrainingOf(device, options, torch::optim::SGDOptions(0.1).momentum(0.9), seed) {}

  std::vector<at::Tensor> grads() const {
    std::vector<at::Tensor> found;
    for (const at::Tensor& param : net->parameters()) found.push_back(param.grad());
    return clones(found);
  }
  std::vector<at::Tensor> momenta() {
    std::vector<at::Tensor> found;
    for (const at::Tensor& param : net->parameters()) {
      auto& state = *own.state().at(param.unsafeGetTensorImpl());
      found.push_back(static_cast<torch::optim::SGDParamState&>(state).momentum_buffer());
    }
    return clones(found);
  }
};

}  // namespace torchamp
