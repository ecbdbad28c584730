// Neighbouring elements of lists with stochastic rounding: see math/rounding.h.
#pragma once

#include "cuda/vector.h"
#include "math/rounding.h"

namespace torchamp::cuda {

/// Rounds n values stochastically; `first` is the first one's number in the stream.
template <int n>
TORCHAMP_DEVICE void store_noisy(char* to, const float* values, const NoiseStream& stream,
                                 int first, int list) {
  uint32 words[(n + 1) / 2] = {};
  TORCHAMP_UNROLL
  for (int i = 0; i < n; ++i) {
    const bfloat16 rounded = round_stochastically(values[i], noise(stream, first + i, list));
    words[i / 2] |= static_cast<uint32>(rounded.bits) << (i % 2 * 16);
  }
  store_bytes<n * sizeof(bfloat16)>(to, words);
}

}  // namespace torchamp::cuda
