// Keeps more of a float than its 16 stored bits: by stochastic rounding, or in 16 low bits.
#pragma once

#include "math/float16.h"

namespace torchamp {

/// The finaliser of MurmurHash3 (Appleby): every bit of the result depends on every bit of `x`.
TORCHAMP_MATH uint32 mixed(uint32 x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

/// Of a tensor's noise in one step, which so is the same in every run and on every device.
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

/// A float of which `high` holds the 16 bits that it rounds to, and this the rest: a signed number
/// of units in the last place of the float; beside float16, of 2^-25 of its power of two.
struct low_bits16 {
  uint16 bits;
};

TORCHAMP_MATH int32 count_of(low_bits16 low_bits) {
  return low_bits.bits < 0x8000u ? low_bits.bits : static_cast<int32>(low_bits.bits) - 0x10000;
}

/// The halves of a value, in the dtype T that its first half is kept in. `rounded` is that half as
/// a float.
template <class T>
struct Halves;

template <>
struct Halves<bfloat16> {
  /// The low bits of `value`. Exact except for ties, one of which does not fit in 16 bits: they
  /// change by one unit, and still round as before.
  TORCHAMP_MATH static low_bits16 low_bits(float value, float rounded) {
    const uint32 magnitude = float_to_bits(value) & 0x7fffffffu;
    const int32 count =
        static_cast<int32>(magnitude) - static_cast<int32>(float_to_bits(rounded) & 0x7fffffffu);
    const int32 kept = count == 0x8000 ? 0x7fff : count;
    return {static_cast<uint16>(value != value ? 0 : kept)};
  }

  /// The value. If the first half was written from outside, the nearest valid value.
  TORCHAMP_MATH static float reconstruct(float rounded, low_bits16 low_bits) {
    const uint32 sign = float_to_bits(rounded) & 0x80000000u;
    const auto high = static_cast<int32>(float_to_bits(rounded) & 0x7fffffffu);
    int32 magnitude = high + count_of(low_bits);
    magnitude = magnitude < 0 ? 0 : magnitude;
    const bool too_large = high > 0x7f800000 || magnitude > 0x7f800000;
    return float_from_bits(sign | static_cast<uint32>(too_large ? high : magnitude));
  }
};

template <>
struct Halves<float16> {
  /// The low bits of `value`. Exact from 2^-16 to float16's largest; below, within
  /// 2^-40; 0 for values that float16 cannot hold.
  TORCHAMP_MATH static low_bits16 low_bits(float value, float rounded) {
    const float counts = (value - rounded) * float_from_bits((279u - exponent_of(rounded)) << 23);
    const float to_integer = 12582912.0f;  // 1.5 · 2^23
    const float whole = is_nonfinite(rounded) ? 0.0f : counts + to_integer - to_integer;
    return {static_cast<uint16>(static_cast<int32>(whole))};
  }

  TORCHAMP_MATH static float reconstruct(float rounded, low_bits16 low_bits) {
    const int32 count = count_of(low_bits);
    const float unit = float_from_bits((exponent_of(rounded) - 25u) << 23);
    const float sum = fmaf(static_cast<float>(count), unit, rounded);
    const float reconstructed = count == 0 ? rounded : sum;
    return is_nonfinite(rounded) ? rounded : reconstructed;
  }

 private:
  /// The exponent's bits of a float16 as those of a float, and 2^-14's for subnormals.
  TORCHAMP_MATH static uint32 exponent_of(float rounded) {
    const uint32 exponent = (float_to_bits(rounded) >> 23) & 0xffu;
    return exponent < 113u ? 113u : exponent;
  }
};

template <class T>
TORCHAMP_MATH low_bits16 low_bits_of(float value, T high) {
  return Halves<T>::low_bits(value, to_float(high));
}

template <class T>
TORCHAMP_MATH float reconstructed(T high, low_bits16 low_bits) {
  return Halves<T>::reconstruct(to_float(high), low_bits);
}

}  // namespace torchamp
