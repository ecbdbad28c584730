// Neighbouring elements of lists with stochastic rounding or low bits: see
// math/rounding.h.
#pragma once

#include "cuda/vector.h"
#include "math/rounding.h"

namespace torchamp::cuda {

/// Stores 16-bit numbers, n of them, that `bits_of` gives for each lane.
template <int n, class BitsOf>
TORCHAMP_DEVICE void store_shorts(char* to, BitsOf bits_of) {
  uint32 words[(n + 1) / 2] = {};
  TORCHAMP_UNROLL
  for (int i = 0; i < n; ++i) words[i / 2] |= static_cast<uint32>(bits_of(i)) << (i % 2 * 16);
  store_bytes<n * sizeof(uint16)>(to, words);
}

/// Rounds n values stochastically; `first` is the first one's number in the stream.
template <int n>
TORCHAMP_DEVICE void store_noisy(char* to, const float* values, const NoiseStream& stream,
                                 int first, int list) {
  store_shorts<n>(to, [&](int i) {
    return round_stochastically(values[i], noise(stream, first + i, list)).bits;
  });
}

template <class T, int n>
TORCHAMP_DEVICE void reconstruct_as(const Bits<n>& high, const Bits<n>& low_bits, float* values) {
  TORCHAMP_UNROLL
  for (int i = 0; i < n; ++i) {
    values[i] = reconstructed(T{half_of(high.words, i)}, low_bits16{half_of(low_bits.words, i)});
  }
}

/// The values whose halves are `high`, as `dtype`, and `low_bits`.
template <int n>
TORCHAMP_DEVICE void reconstruct(DType dtype, const Bits<n>& high, const Bits<n>& low_bits,
                                 float* values) {
  if (dtype == DType::kFloat16) {
    reconstruct_as<float16>(high, low_bits, values);
  } else {
    reconstruct_as<bfloat16>(high, low_bits, values);
  }
}

template <class T, int n>
TORCHAMP_DEVICE void split_as(char* high, char* low_bits, const float* values) {
  store_shorts<n>(high, [&](int i) { return from_float<T>(values[i]).bits; });
  store_shorts<n>(low_bits,
                  [&](int i) { return low_bits_of(values[i], from_float<T>(values[i])).bits; });
}

template <int n>
TORCHAMP_DEVICE void store_split(DType dtype, char* high, char* low_bits, const float* values) {
  if (dtype == DType::kFloat16) {
    split_as<float16, n>(high, low_bits, values);
  } else {
    split_as<bfloat16, n>(high, low_bits, values);
  }
}

}  // namespace torchamp::cuda
