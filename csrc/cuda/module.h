// Which rung of kernels a CUDA device runs on.
#pragma once

namespace torchamp::cuda {

enum class Rung { kFatbin, kNvrtc, kAten };

/// Whether TORCHAMP_KERNELS=aten turns all kernels off, the CPU's too.
bool forced_aten();

Rung rung(int device);

}  // namespace torchamp::cuda
