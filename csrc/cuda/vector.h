// Neighbouring elements of one list: loaded as bits, 16 bytes at a time where they are aligned,
// and widened to float only when all of a batch's loads are in flight.
#pragma once

#include "cuda/device.h"
#include "math/float16.h"

namespace torchamp::cuda {

constexpr int kVectorBytes = 16;

/// The bits of n elements, 16-bit ones two to a word.
template <int n>
struct Bits {
  uint32 words[n];
};

template <int count>
struct alignas(count * sizeof(uint32)) Words {
  uint32 word[count];
};

/// Loads kBytes, a power of two, from an address that is a multiple of them or of 16.
template <int kBytes>
TORCHAMP_DEVICE void load_bytes(const char* from, uint32* words) {
  if constexpr (kBytes == sizeof(uint16)) {
    words[0] = *reinterpret_cast<const uint16*>(from);
  } else if constexpr (kBytes > kVectorBytes) {
    load_bytes<kBytes / 2>(from, words);
    load_bytes<kBytes / 2>(from + kBytes / 2, words + kBytes / 8);
  } else {
    const auto loaded = *reinterpret_cast<const Words<kBytes / 4>*>(from);
    TORCHAMP_UNROLL
    for (int i = 0; i < kBytes / 4; ++i) words[i] = loaded.word[i];
  }
}

template <int n>
TORCHAMP_DEVICE void load_bits(DType dtype, const char* from, Bits<n>& bits) {
  if (dtype == DType::kFloat32) {
    load_bytes<4 * n>(from, bits.words);
  } else {
    load_bytes<2 * n>(from, bits.words);
  }
}

/// Loads n 16-bit elements from an address that need not be aligned to more.
template <int n>
TORCHAMP_DEVICE void load_shorts(const char* from, uint32* words) {
  const auto* shorts = reinterpret_cast<const uint16*>(from);
  TORCHAMP_UNROLL
  for (int i = 0; i < (n + 1) / 2; ++i) {
    words[i] = shorts[2 * i] | (2 * i + 1 < n ? static_cast<uint32>(shorts[2 * i + 1]) << 16 : 0u);
  }
}

/// Loads words of 32 bits.
template <int n>
TORCHAMP_DEVICE void load_words(const char* from, uint32* words) {
  TORCHAMP_UNROLL
  for (int i = 0; i < n; ++i) words[i] = reinterpret_cast<const uint32*>(from)[i];
}

template <int kBytes>
TORCHAMP_DEVICE void store_bytes(char* to, const uint32* words) {
  if constexpr (kBytes == sizeof(uint16)) {
    *reinterpret_cast<uint16*>(to) = static_cast<uint16>(words[0]);
  } else if constexpr (kBytes > kVectorBytes) {
    store_bytes<kBytes / 2>(to, words);
    store_bytes<kBytes / 2>(to + kBytes / 2, words + kBytes / 8);
  } else {
    Words<kBytes / 4> stored;
    TORCHAMP_UNROLL
    for (int i = 0; i < kBytes / 4; ++i) stored.word[i] = words[i];
    *reinterpret_cast<Words<kBytes / 4>*>(to) = stored;
  }
}

TORCHAMP_DEVICE uint16 half_of(const uint32* words, int i) {
  return static_cast<uint16>(words[i / 2] >> (i % 2 * 16));
}

template <int n>
TORCHAMP_DEVICE void widen(DType dtype, const Bits<n>& bits, float* values) {
  if (dtype == DType::kFloat32) {
    TORCHAMP_UNROLL
    for (int i = 0; i < n; ++i) values[i] = float_from_bits(bits.words[i]);
  } else if (dtype == DType::kFloat16) {
    TORCHAMP_UNROLL
    for (int i = 0; i < n; ++i) values[i] = to_float(float16{half_of(bits.words, i)});
  } else {
    TORCHAMP_UNROLL
    for (int i = 0; i < n; ++i) values[i] = to_float(bfloat16{half_of(bits.words, i)});
  }
}

/// Rounds n values to a 16-bit type and stores them; returns whether a result is not finite.
template <class T, int n>
TORCHAMP_DEVICE bool store_rounded(char* to, const float* values) {
  uint32 words[(n + 1) / 2] = {};
  bool overflow = false;
  TORCHAMP_UNROLL
  for (int i = 0; i < n; ++i) {
    const T rounded = from_float<T>(values[i]);
    overflow |= is_nonfinite(rounded);
    words[i / 2] |= static_cast<uint32>(rounded.bits) << (i % 2 * 16);
  }
  store_bytes<n * sizeof(T)>(to, words);
  return overflow;
}

template <int n>
TORCHAMP_DEVICE void store_floats(char* to, const float* values) {
  uint32 words[n];
  TORCHAMP_UNROLL
  for (int i = 0; i < n; ++i) words[i] = float_to_bits(values[i]);
  store_bytes<n * sizeof(float)>(to, words);
}

/// Stores n values as `dtype`; returns whether a low-precision result is not finite.
template <int n>
TORCHAMP_DEVICE bool store_values(DType dtype, char* to, const float* values) {
  if (dtype == DType::kFloat16) return store_rounded<float16, n>(to, values);
  if (dtype == DType::kBFloat16) return store_rounded<bfloat16, n>(to, values);
  store_floats<n>(to, values);
  return false;
}

}  // namespace torchamp::cuda
