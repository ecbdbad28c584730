// The shape of a block.
#pragma once

namespace torchamp::cuda {

constexpr int kWarp = 32;
/// The threads of kernels for which nothing else is chosen.
constexpr int kThreads = 128;
/// The threads of passes over grads.
constexpr int kPassThreads = 256;
/// As many as any kernel is started with.
constexpr int kMaxThreads = 512;

}  // namespace torchamp::cuda
