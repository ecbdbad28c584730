// What optimizers tell graphed() of their steps in this thread.
#pragma once

#include <torchamp/optimizer.h>

#include "optim/fused_stepper.h"

namespace torchamp {

/// Before a step: graphed() learns of it, and checks that a graph may have it.
void note_step(const Optimizer& optimizer);

/// While graphed() captures, gives the group's learning rate to the steppers as a tensor, which
/// replays read.
void lend_rate(const optim::FusedOptimizer& optimizer, size_t group, FusedStepper& stepper);

}  // namespace torchamp
