// Blocks of lists with stochastic rounding: see math/rounding.h.
#pragma once

#include "cpu/block.h"

namespace torchamp::cpu {

/// Rounds `values` into the span, a bfloat16 list's stochastically.
void store_stochastically(const Plan& plan, const Span& span, int list, const float* values,
                          uint32 key);

}  // namespace torchamp::cpu
