#pragma once

#include <torchamp/amp_state.h>
#include <torchamp/optimizer.h>

namespace torchamp {

/// What an Amp keeps of an optimizer.
inline WrappedOptimizer& wrapped_of(const Optimizer& optimizer) {
  return optimizer.amp()->optimizers()[optimizer.index()];
}

}  // namespace torchamp
