// A network trained with momentum, with accessors to its state.
#pragma once

#include <cmath>
#include <vector>

#include "net.h"

namespace torchamp {

/// A network, its optimizer at some level, and one batch.
struct Training {
  Training(at::Device device, const Options& options, uint64_t seed = 1)
      : net(make_net(device, seed)),
        batch(make_batch(device)),
        sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        amped(initialize(net, sgd, options)) {}

  at::Tensor loss() { return loss_of(amped.model(batch.data), batch.target); }
  LossScaler& scaler() { return amped.model.amp()->loss_scaler(); }
  Optimizer& optimizer() { return amped.optimizer; }
  void step() {
    optimizer().zero_grad();
    { scale_loss(loss(), optimizer()).backward(); }
    EXPECT_TRUE(optimizer().step());
  }
  /// A backward whose grads overflow.
  void overflow() {
    scale_loss scaled_loss(loss(), optimizer());
    scaled_loss.backward();
    net->last->bias.grad().fill_(INFINITY);
  }
  std::vector<at::Tensor> grads() const {
    std::vector<at::Tensor> found;
    for (const at::Tensor& param : net->parameters()) found.push_back(param.grad());
    return clones(found);
  }
  std::vector<at::Tensor> momenta() {
    std::vector<at::Tensor> found;
    for (const at::Tensor& param : net->parameters()) {
      auto& state = *sgd.state().at(param.unsafeGetTensorImpl());
      found.push_back(static_cast<torch::optim::SGDParamState&>(state).momentum_buffer());
    }
    return clones(found);
  }

  Net net;
  Batch batch;
  torch::optim::SGD sgd;
  Amped<Net> amped;
};

}  // namespace torchamp
