// Stochastic rounding, which on average keeps more of a float than its 16 stored bits.
#pragma once

#include "math/float16.h"

namespace torchamp {

/// The finaliser of MurmurHash3 (Appleby): every bit of the result depends on every bit of `x`.
TORCHAMP_MATH uint32 mixed(uint32 x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

/// The key of a tensor's noise in one step: with it, noise is the same in every run and on every
/// device.
TORCHAMP_MATH uint32 noise_key(int32 position, float step) {
  return mixed(mixed(static_cast<uint32>(position)) ^ float_to_bits(step));
}

/// The noise of a tensor's elements from one of them on, as far as the next multiple of 2^29.
struct NoiseStream {
  uint32 key;
  uint32 begin;
};

TORCHAMP_MATH NoiseStream noise_from(uint32 key, int64 begin) {
  return {key ^ mixed(static_cast<uint32>(begin >> 29)), static_cast<uint32>(begin) * 8u};
}

/// The element after the last for which the stream from `begin` on holds.
TORCHAMP_MATH int64 noise_end(int64 begin) {
  return ((begin >> 29) + 1) << 29;
}

/// 16 random bits for element number `i` of the stream, in one of a step's lists.
TORCHAMP_MATH uint32 noise(const NoiseStream& stream, int i, int list) {
  const uint32 place = stream.begin + static_cast<uint32>(i) * 8u + static_cast<uint32>(list);
  return mixed(stream.key ^ place) >> 16;
}

TORCHAMP_MATH uint32 noise(uint32 key, int64 index, int list) {
  return noise(noise_from(key, index), 0, list);
}

/// One of the two neighbours of `value`, each with the probability that makes the mean `value`:
/// small updates are not lost on average, as they are with rounding to nearest.
TORCHAMP_MATH bfloat16 round_stochastically(float value, uint32 noise) {
  if (is_nonfinite(value)) return from_float<bfloat16>(value);
  return {static_cast<uint16>((float_to_bits(value) + noise) >> 16)};
}

}  // namespace torchamp
