#pragma once

#include "ops/kernels.h"

namespace torchamp::cuda {

/// The device and torch's current stream on it. Throws std::runtime_error where torch has no CUDA
/// or no such device.
Queue current_queue(int device);

/// Whether what is queued now goes into a graph. Throws std::runtime_error where the driver does
/// not tell.
bool is_capturing(Queue queue);

}  // namespace torchamp::cuda
