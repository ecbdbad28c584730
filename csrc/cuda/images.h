// Single kernels in a form that the driver loads, compiled when they are asked for.
#pragma once

#include <string>

#include "cuda/kernel.h"

namespace torchamp::cuda {

/// A kernel's image for cards of a capability, given as 10 · major + minor: compiled once a
/// process, and not at all where the image store has it. It stays where it is. Throws
/// std::runtime_error where NVRTC cannot compile it. Not to be called by two threads at once.
const std::string& image_of(Kernel kernel, int capability);

/// The same of a kernel that does nothing, but asks for what the others ask for: where it can be
/// had, they can.
const std::string& trial_image(int capability);

}  // namespace torchamp::cuda
