// Products that are summed in float16, which overflows where float32 sums do not.
#pragma once

#include <ATen/core/stack.h>
#include <ATen/record_function.h>

namespace torchamp::inspect {

/// Whether an op, here with inputs, is a product of float16 that writes to none of them.
bool is_half_product(const at::RecordFunction& record);

/// Whether such a product is finite if computed in float32 and then rounded. False where cuBLAS
/// must not reduce in float16.
bool float32_sums_are_finite(const at::RecordFunction& record, torch::jit::Stack arguments);

}  // namespace torchamp::inspect
