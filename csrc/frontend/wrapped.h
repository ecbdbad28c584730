#pragma once

#include <torchamp/amp_state.h>
#include <torchamp/optimizer.h>

namespace torchamp {

/// An Amp's entry for an optimizer.
inline WrappedOptimizer& wrapped_of(const Optimizer& optimizer) {
  return optimizer.amp()->optimizer(optimizer.index());
}

}  // namespace torchamp
