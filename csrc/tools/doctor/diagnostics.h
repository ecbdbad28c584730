// The diagnostics about kernels, separated for tests.
#pragma once

#include <torchamp/build_info.h>

#include "cuda/image_store.h"
#include "cuda/nvrtc.h"
#include "doctor/doctor.h"

namespace torchamp {

/// ATen is not optimal; all others are the best for their device.
Diagnostic kernels_diagnostic(const std::string& device, const Backend& backend);

/// `capability`: as 10 · major + minor. `is_in_torch`: torch has the op for CUDA.
Diagnostic float8_diagnostic(const std::string& device, int capability, bool is_in_torch);

/// Compiles an empty kernel, which fails without NVRTC's companion libnvrtc-builtins.so.
Diagnostic nvrtc_diagnostic(const cuda::Nvrtc& nvrtc);

/// `is_missed`: NVRTC compiles this machine's kernels.
Diagnostic store_diagnostic(const cuda::ImageStore& store, bool is_missed);

}  // namespace torchamp
