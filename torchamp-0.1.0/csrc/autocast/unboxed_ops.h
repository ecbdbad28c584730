// O1's kernels of some ops of lists.h that programs call on small tensors. Boxing the arguments
// costs a fifth of such a call.
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

namespace torchamp {

/// Registers those for which torch has no kernel at `key`.
void add_unboxed(torch::Library& library, c10::DispatchKey key);

}  // namespace torchamp
