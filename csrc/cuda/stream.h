#pragma once

#include "kernels.h"

namespace torchamp::cuda {

/// The device and torch's current stream on it.
Queue current_queue(int device);

}  // namespace torchamp::cuda
