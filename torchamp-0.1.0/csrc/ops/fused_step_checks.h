// Checks of fused_step's arguments, except those of building a plan: plan_builder.h.
#pragma once

#include <torchamp/fused_step.h>

namespace torchamp {

/// Throws unless lengths, dtypes and devices match each other and the algorithm.
void check_arguments(StepAlgorithm algorithm, const StepLists& lists, const StepScalars& scalars);

}  // namespace torchamp
