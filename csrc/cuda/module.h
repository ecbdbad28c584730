// The kernels of each CUDA device: on which rung of the ladder fatbin → NVRTC → ATen they stand,
// and why.
#pragma once

#include <string>

namespace torchamp::cuda {

enum class Rung { kFatbin, kNvrtc, kAten };

/// "fatbin", "nvrtc" or "aten".
const char* name(Rung rung);

/// Whether TORCHAMP_KERNELS=aten turns all kernels off, the CPU's too. Throws std::runtime_error if
/// the variable has a value that it cannot have.
bool forced_aten();

/// Chooses the rung of a device now rather than at its first launch. Kernels are loaded one by one,
/// and on the rung NVRTC compiled, when each is first launched: from any thread, and into a graph's
/// capture, too. Throws std::runtime_error in a process forked after the first load, and when the
/// rung that TORCHAMP_KERNELS demands cannot be had; without such a demand the device is left to
/// ATen.
void load(int device);

/// The rung that the device's kernels stand on; chosen if need be, as load() does.
Rung rung(int device);

/// Why the device does not stand on a higher rung: a line for each that was tried. Empty for the
/// highest.
std::string rung_reason(int device);

}  // namespace torchamp::cuda
