#pragma once

#include "backends/kernels.h"

namespace torchamp::cuda {

/// The device and torch's current stream on it. Throws std::runtime_error if torch has no CUDA
/// or no such device.
Queue current_queue(int device);

/// Whether the queue is being captured into a graph. Throws std::runtime_error if the driver cannot
/// report it.
bool is_capturing(Queue queue);

}  // namespace torchamp::cuda
