// What a report says of kernels, apart from where it finds them.
#pragma once

#include <torchamp/build_info.h>
#include <torchamp/detail/doctor.h>

#include "cuda/image_store.h"

namespace torchamp {

/// ATen works less well than could be; all others are as good as the device allows.
Finding kernels_finding(const std::string& device, const Backend& backend);

/// `is_missed`: NVRTC compiles this machine's kernels.
Finding store_finding(const cuda::ImageStore& store, bool is_missed);

}  // namespace torchamp
