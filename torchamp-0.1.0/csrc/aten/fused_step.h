// fused_step in plain ATen.
#pragma once

#include <torchamp/fused_step.h>

#include "aten/fallback.h"

namespace torchamp::aten {

void fused_step(const Positions& positions, StepAlgorithm algorithm, const StepLists& lists,
                const StepScalars& scalars);

}  // namespace torchamp::aten
