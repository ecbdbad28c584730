// Blocks of lists that keep more than rounding to nearest would: see math/rounding.h.
#pragma once

#include "cpu/block.h"

namespace torchamp::cpu {

/// Rounds `values` into the span, a bfloat16 list's stochastically.
void store_stochastically(const Plan& plan, const Span& span, int list, const float* values,
                          uint32 key);

/// The values of which `high` holds the one half and `remainders` the other.
void load_joined(const Plan& plan, const Span& span, int high, int remainders, float* values);

void store_split(const Plan& plan, const Span& span, int high, int remainders, const float* values);

}  // namespace torchamp::cpu
