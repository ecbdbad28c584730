// Single kernels in a form that the driver loads, compiled on request.
#pragma once

#include <string>

#include "cuda/kernel.h"

namespace torchamp::cuda {

/// The least compute capability, as 10 · major + minor, at which kernels take 32 KB of parameters.
constexpr int kOldestCapability = 70;

/// A kernel's image for cards of a capability, given as 10 · major + minor: compiled once
/// per process, and not at all if the image store has it. Its address does not change. Throws
/// std::runtime_error if NVRTC cannot compile it. Not to be called by two threads at once.
const std::string& image_of(Kernel kernel, int capability);

/// The image of an empty kernel with the requirements of the others: if it is available, so are
/// they.
const std::string& trial_image(int capability);

}  // namespace torchamp::cuda
