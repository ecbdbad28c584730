// The shape of a block. Hosts choose how many threads it has; kernels ask.
#pragma once

namespace torchamp::cuda {

constexpr int kWarp = 32;
/// Of kernels for which nothing else is chosen.
constexpr int kThreads = 128;
/// As many as any kernel is started with.
constexpr int kMaxThreads = 512;
constexpr int kMaxWarps = kMaxThreads / kWarp;

}  // namespace torchamp::cuda
