#pragma once

#include <torchamp/amp_state.h>
#include <torchamp/optimizer.h>

namespace torchamp {

/// An Amp's entry for an optimizer.
inline WrappedOptimizer& wrapped_of(const Optimizer& optimizer) {
  return optimizer.amp()->optimizer(optimizer.index());
}

/// Moves the state of the parameter `from` to `to`, which replaces it.
void move_state(torch::optim::Optimizer& optimizer, const at::Tensor& from, const at::Tensor& to);

}  // namespace torchamp
