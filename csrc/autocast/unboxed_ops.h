// O1's kernels of some ops of lists.h that programs call on small tensors. Boxing the arguments
// costs a fifth of such a call.
#pragma once

#include <c10/core/DispatchKey.h>
#include <torch/library.h>

#include <string>

namespace torchamp {

/// Registers the kernel of an op of kFloat32 or of kWidest; returns false for those that have none.
bool add_unboxed_to_float32(torch::Library& library, c10::DispatchKey key, const std::string& name);
bool add_unboxed_to_widest(torch::Library& library, c10::DispatchKey key, const std::string& name);

}  // namespace torchamp
