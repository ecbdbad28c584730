// Blocks of lists with stochastic rounding or low bits: see math/rounding.h.
#pragma once

#include "cpu/block.h"

namespace torchamp::cpu {

/// Rounds `values` into the span, a bfloat16 list's stochastically.
void store_stochastically(const Plan& plan, const Span& span, int list, const float* values,
                          uint32 key);

/// The values whose halves are `high` and `low_bits`.
void load_reconstructed(const Plan& plan, const Span& span, int high, int low_bits, float* values);

void store_split(const Plan& plan, const Span& span, int high, int low_bits, const float* values);

}  // namespace torchamp::cpu
