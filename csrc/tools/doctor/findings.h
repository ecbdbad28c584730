// The findings of a report about kernels, separated for tests.
#pragma once

#include <torchamp/build_info.h>

#include "cuda/image_store.h"
#include "cuda/nvrtc.h"
#include "doctor/doctor.h"

namespace torchamp {

/// ATen is not optimal; all others are the best for their device.
Finding kernels_finding(const std::string& device, const Backend& backend);

/// Compiles an empty kernel, which fails without NVRTC's companion libnvrtc-builtins.so.
Finding nvrtc_finding(const cuda::Nvrtc& nvrtc);

/// `is_missed`: NVRTC compiles this machine's kernels.
Finding store_finding(const cuda::ImageStore& store, bool is_missed);

}  // namespace torchamp
