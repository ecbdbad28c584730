#include "cpu/block.h"

#include "cpu/isa.h"
#include "cpu/prefetch.h"

#if defined(TORCHAMP_AVX2)
#include <immintrin.h>
#elif defined(TORCHAMP_NEON)
#include <arm_neon.h>
#endif

namespace torchamp::cpu {
namespace {

template <class T>
struct Widen {
  TORCHAMP_MATH static void run(const T* from, float* to, const Span& span) {
    for_each_element(
        span, [=](int i, int) { to[i] = to_float(from[i]); }, from);
  }
};

template <class T>
struct Narrow {
  TORCHAMP_MATH static void run(const float* from, T* to, const Span& span) {
    for_each_element(
        span, [=](int i, int) { to[i] = from_float<T>(from[i]); }, from);
  }
};

template <class Bits, class T>
TORCHAMP_MATH Bits bits_of(const T& value) {
  Bits bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

template <class Bits>
TORCHAMP_MATH Bits any(const Bits (&lanes)[kLanes]) {
  Bits bits = 0;
  for (const Bits lane : lanes) bits |= lane;
  return bits;
}

template <class T, class Bits, Bits kExponent>
struct AnyNonfinite {
  TORCHAMP_MATH static bool run(const T* data, const Span& span) {
    Bits found[kLanes] = {};
    const auto look = [&](int i, int lane) {
      found[lane] |= static_cast<Bits>((bits_of<Bits>(data[i]) & kExponent) == kExponent);
    };
    for_each_element(span, look, data);
    return any(found) != 0;
  }
};

/// All bits of a float but its sign.
constexpr uint32 kMagnitudeMask = 0x7fffffffu;

/// The bits of the least float that rounds to infinity: half a unit above the largest value, whose
/// last bit is 1.
constexpr uint32 kHalfOverflow = 0x477ff000u;
constexpr uint32 kBFloatOverflow = 0x7f7f8000u;

/// Whether any magnitude has at least these bits, as NaNs always do.
template <uint32 kMagnitudeBits>
struct AnyAtLeast {
  TORCHAMP_MATH static bool run(const float* values, const Span& span) {
    uint32 found[kLanes] = {};
    const auto look = [&](int i, int lane) {
      found[lane] |= (float_to_bits(values[i]) & kMagnitudeMask) >= kMagnitudeBits;
    };
    for_each_element(span, look);
    return any(found) != 0;
  }
};

#if defined(TORCHAMP_AVX2)

TORCHAMP_AVX2 void widen_f16c(const float16* from, float* to, const Span& span) {
  const int64 end = prefetching_end(span);
  int i = 0;
  for (; i + 8 <= span.count; i += 8) {
    if (i < end) __builtin_prefetch(from + i + kPrefetched);
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  for (; i < span.count; ++i) to[i] = to_float(from[i]);
}

TORCHAMP_AVX2 void narrow_f16c(const float* from, float16* to, const Span& span, bool stream) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT;
  const int64 end = prefetching_end(span);
  int i = 0;
  for (; i + 16 <= span.count; i += 16) {
    if (i < end) __builtin_prefetch(from + i + kPrefetched);
    const __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), kNearest);
    const __m128i high = _mm256_cvtps_ph(_mm256_loadu_ps(from + i + 8), kNearest);
    auto* target = reinterpret_cast<__m256i*>(to + i);
    stream ? _mm256_stream_si256(target, _mm256_set_m128i(high, low))
           : _mm256_storeu_si256(target, _mm256_set_m128i(high, low));
  }
  for (; i < span.count; ++i) to[i] = from_float<float16>(from[i]);
}

TORCHAMP_AVX2 void stream_bytes(const char* from, char* to, int64 bytes) {
  int64 i = 0;
  for (; i + 32 <= bytes; i += 32) {
    const __m256i chunk = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), chunk);
  }
  memcpy(to + i, from + i, bytes - i);
}

#elif defined(TORCHAMP_NEON)

void widen_neon(const float16* from, float* to, const Span& span) {
  const int64 end = prefetching_end(span);
  int i = 0;
  for (; i + 8 <= span.count; i += 8) {
    if (i < end) __builtin_prefetch(from + i + kPrefetched);
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(&from[i].bits));
    vst1q_f32(to + i, vcvt_f32_f16(vget_low_f16(halves)));
    vst1q_f32(to + i + 4, vcvt_high_f32_f16(halves));
  }
  for (; i < span.count; ++i) to[i] = to_float(from[i]);
}

void narrow_neon(const float* from, float16* to, const Span& span) {
  const int64 end = prefetching_end(span);
  int i = 0;
  for (; i + 8 <= span.count; i += 8) {
    if (i < end) __builtin_prefetch(from + i + kPrefetched);
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(from + i));
    const float16x8_t halves = vcvt_high_f16_f32(low, vld1q_f32(from + i + 4));
    vst1q_u16(&to[i].bits, vreinterpretq_u16_f16(halves));
  }
  for (; i < span.count; ++i) to[i] = from_float<float16>(from[i]);
}

#endif

void widen(const float16* from, float* to, const Span& span) {
#if defined(TORCHAMP_AVX2)
  if (kHasAvx2) return widen_f16c(from, to, span);
#elif defined(TORCHAMP_NEON)
  return widen_neon(from, to, span);
#endif
  Widen<float16>::run(from, to, span);
}

void widen(const bfloat16* from, float* to, const Span& span) {
  run_block<Widen<bfloat16>>(from, to, span);
}

void write_through(const void* from, char* to, int64 bytes, [[maybe_unused]] bool stream) {
#if defined(TORCHAMP_AVX2)
  if (stream && kHasAvx2) return stream_bytes(static_cast<const char*>(from), to, bytes);
#endif
  memcpy(to, from, bytes);
}

void narrow(const float* from, float16* to, const Span& span, [[maybe_unused]] bool stream) {
#if defined(TORCHAMP_AVX2)
  if (kHasAvx2) return narrow_f16c(from, to, span, stream);
#elif defined(TORCHAMP_NEON)
  return narrow_neon(from, to, span);
#endif
  Narrow<float16>::run(from, to, span);
}

void narrow(const float* from, bfloat16* to, const Span& span, bool stream) {
  if (!stream) return run_block<Narrow<bfloat16>>(from, to, span);
  bfloat16 rounded[kBlock];
  run_block<Narrow<bfloat16>>(from, rounded, span);
  write_through(rounded, reinterpret_cast<char*>(to), span.count * int64{sizeof(bfloat16)}, true);
}

bool any_nonfinite(const float* data, const Span& span) {
  return run_block<AnyNonfinite<float, uint32, 0x7f800000u>>(data, span);
}

bool any_nonfinite(const float16* data, const Span& span) {
  return run_block<AnyNonfinite<float16, uint16, 0x7c00>>(data, span);
}

bool any_nonfinite(const bfloat16* data, const Span& span) {
  return run_block<AnyNonfinite<bfloat16, uint16, 0x7f80>>(data, span);
}

}  // namespace

const float* load(const Plan& plan, const Span& span, int list, float* buffer) {
  const char* from = address_of(plan, span, list);
  switch (plan.dtype(span.tensor, list)) {
    case DType::kFloat32:
      return reinterpret_cast<const float*>(from);
    case DType::kFloat16:
      widen(reinterpret_cast<const float16*>(from), buffer, span);
      return buffer;
    case DType::kBFloat16:
      widen(reinterpret_cast<const bfloat16*>(from), buffer, span);
      return buffer;
  }
  return nullptr;
}

float* output(const Plan& plan, const Span& span, int list, bool stream, float* buffer) {
  const bool in_place = plan.dtype(span.tensor, list) == DType::kFloat32 && !stream;
  return in_place ? reinterpret_cast<float*>(address_of(plan, span, list)) : buffer;
}

void store(const Plan& plan, const Span& span, int list, const float* values, bool stream) {
  char* to = address_of(plan, span, list);
  switch (plan.dtype(span.tensor, list)) {
    case DType::kFloat32:
      if (reinterpret_cast<const char*>(values) != to) {
        write_through(values, to, span.count * int64{sizeof(float)}, stream);
      }
      break;
    case DType::kFloat16:
      return narrow(values, reinterpret_cast<float16*>(to), span, stream);
    case DType::kBFloat16:
      return narrow(values, reinterpret_cast<bfloat16*>(to), span, stream);
  }
}

bool any_overflow(const Plan& plan, const Span& span, int list, const float* values) {
  switch (plan.dtype(span.tensor, list)) {
    case DType::kFloat16:
      return run_block<AnyAtLeast<kHalfOverflow>>(values, span);
    case DType::kBFloat16:
      return run_block<AnyAtLeast<kBFloatOverflow>>(values, span);
    case DType::kFloat32:
      break;
  }
  return false;
}

bool any_nonfinite(const Plan& plan, const Span& span, int list) {
  const void* data = address_of(plan, span, list);
  switch (plan.dtype(span.tensor, list)) {
    case DType::kFloat32:
      return any_nonfinite(static_cast<const float*>(data), span);
    case DType::kFloat16:
      return any_nonfinite(static_cast<const float16*>(data), span);
    case DType::kBFloat16:
      return any_nonfinite(static_cast<const bfloat16*>(data), span);
  }
  return false;
}

void fence() {
#if defined(TORCHAMP_AVX2)
  _mm_sfence();
#endif
}

}  // namespace torchamp::cpu
