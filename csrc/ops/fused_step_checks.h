// Checks of fused_step's arguments, except those of building a plan: plan_builder.h.
#pragma once

#include <torchamp/fused_step.h>

#include "ops/plan_builder.h"

namespace torchamp {

/// Throws unless lengths, dtypes and devices match each other and the algorithm.
void check_arguments(StepAlgorithm algorithm, const StepLists& lists, const StepScalars& scalars);

/// Throws unless every position whose params are low bits has a 16-bit model param.
void check_all_low_bits(const Work& work, const StepLists& lists);

}  // namespace torchamp
