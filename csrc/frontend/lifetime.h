// Whether an optimizer that the program owns still exists.
#pragma once

#include <torch/optim/optimizer.h>

#include <memory>

namespace torchamp {

/// Expires when the optimizer, or the one that it is moved to, is destroyed: LibTorch's or
/// torchamp's, or of a class that derives from one of these and has its options. Never for others.
std::weak_ptr<const void> lifetime_of(torch::optim::Optimizer& optimizer);

/// Whether an optimizer without groups was moved from; else the program has cleared them.
bool was_moved_from(torch::optim::Optimizer& optimizer);

}  // namespace torchamp
