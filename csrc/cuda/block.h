// The shape of a block, the same for every kernel.
#pragma once

namespace torchamp::cuda {

constexpr int kWarp = 32;
constexpr int kThreads = 128;
constexpr int kWarpsPerBlock = kThreads / kWarp;

}  // namespace torchamp::cuda
