#include "cpu/block.h"

#include <type_traits>

#include "cpu/isa.h"

#if defined(TORCHAMP_AVX2)
#include <immintrin.h>
#endif

namespace torchamp::cpu {
namespace {

template <class T>
struct Widen {
  TORCHAMP_MATH static void run(const T* from, float* to, int count) {
    for (int i = 0; i < count; ++i) to[i] = to_float(from[i]);
  }
};

template <class T>
struct Narrow {
  TORCHAMP_MATH static void run(const float* from, T* to, int count) {
    for (int i = 0; i < count; ++i) to[i] = from_float<T>(from[i]);
  }
};

template <class T, class Bits, Bits kExponent>
struct AnyNonfinite {
  TORCHAMP_MATH static bool run(const T* data, int64 count) {
    Bits found = 0;
    for (int64 i = 0; i < count; ++i) {
      Bits bits;
      memcpy(&bits, data + i, sizeof(bits));
      found |= static_cast<Bits>((bits & kExponent) == kExponent);
    }
    return found != 0;
  }
};
using AnyNonfiniteFloat = AnyNonfinite<float, uint32, 0x7f800000u>;
using AnyNonfiniteHalf = AnyNonfinite<float16, uint16, 0x7c00>;
using AnyNonfiniteBFloat = AnyNonfinite<bfloat16, uint16, 0x7f80>;

template <class T, class Bits>
struct AnyNonzero {
  TORCHAMP_MATH static bool run(const T* data, int64 count) {
    Bits found = 0;
    for (int64 i = 0; i < count; ++i) {
      Bits bits;
      memcpy(&bits, data + i, sizeof(bits));
      found |= bits;
    }
    return (found & kMagnitude<T>) != 0;
  }
};

#if defined(TORCHAMP_AVX2)

TORCHAMP_AVX2 void widen_f16c(const float16* from, float* to, int count) {
  int i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

TORCHAMP_AVX2 void narrow_f16c(const float* from, float16* to, int count) {
  int i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
  for (; i < count; ++i) to[i] = from_float<float16>(from[i]);
}

TORCHAMP_AVX2 void stream_bytes(const char* from, char* to, int64 bytes) {
  int64 i = 0;
  for (; i + 32 <= bytes; i += 32) {
    const __m256i chunk = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), chunk);
  }
  memcpy(to + i, from + i, bytes - i);
}

#endif

void widen(const float16* from, float* to, int count) {
#if defined(TORCHAMP_AVX2)
  if (kHasAvx2) return widen_f16c(from, to, count);
#endif
  Widen<float16>::run(from, to, count);
}

void widen(const bfloat16* from, float* to, int count) {
  run_block<Widen<bfloat16>>(from, to, count);
}

void narrow(const float* from, float16* to, int count) {
#if defined(TORCHAMP_AVX2)
  if (kHasAvx2) return narrow_f16c(from, to, count);
#endif
  Narrow<float16>::run(from, to, count);
}

void narrow(const float* from, bfloat16* to, int count) {
  run_block<Narrow<bfloat16>>(from, to, count);
}

void write_through(const void* from, char* to, int64 bytes, bool stream) {
#if defined(TORCHAMP_AVX2)
  if (stream && kHasAvx2) return stream_bytes(static_cast<const char*>(from), to, bytes);
#endif
  memcpy(to, from, bytes);
}

template <class T>
bool store_narrow(const float* values, char* to, int count, bool stream) {
  T rounded[kBlock];
  T* target = stream ? rounded : reinterpret_cast<T*>(to);
  narrow(values, target, count);
  if (stream) write_through(rounded, to, count * int64{sizeof(T)}, true);
  constexpr bool kHalf = sizeof(T) == sizeof(float16) && !std::is_same<T, bfloat16>::value;
  return any_nonfinite(kHalf ? DType::kFloat16 : DType::kBFloat16, target, count);
}

}  // namespace

const float* load(const Plan& plan, const Span& span, int list, float* buffer) {
  const char* from = address_of(plan, span, list);
  switch (plan.dtype(span.tensor, list)) {
    case DType::kFloat32:
      return reinterpret_cast<const float*>(from);
    case DType::kFloat16:
      widen(reinterpret_cast<const float16*>(from), buffer, span.count);
      return buffer;
    case DType::kBFloat16:
      widen(reinterpret_cast<const bfloat16*>(from), buffer, span.count);
      return buffer;
    case DType::kLowBits:
      break;  // means nothing alone
  }
  return nullptr;
}

float* output(const Plan& plan, const Span& span, int list, bool stream, float* buffer) {
  const bool in_place = plan.dtype(span.tensor, list) == DType::kFloat32 && !stream;
  return in_place ? reinterpret_cast<float*>(address_of(plan, span, list)) : buffer;
}

bool store(const Plan& plan, const Span& span, int list, const float* values, bool stream) {
  char* to = address_of(plan, span, list);
  switch (plan.dtype(span.tensor, list)) {
    case DType::kFloat32:
      if (reinterpret_cast<const char*>(values) != to) {
        write_through(values, to, span.count * int64{sizeof(float)}, stream);
      }
      return false;
    case DType::kFloat16:
      return store_narrow<float16>(values, to, span.count, stream);
    case DType::kBFloat16:
      return store_narrow<bfloat16>(values, to, span.count, stream);
    case DType::kLowBits:
      break;
  }
  return false;
}

bool any_nonfinite(DType dtype, const void* data, int64 count) {
  switch (dtype) {
    case DType::kFloat32:
      return run_block<AnyNonfiniteFloat>(static_cast<const float*>(data), count);
    case DType::kFloat16:
      return run_block<AnyNonfiniteHalf>(static_cast<const float16*>(data), count);
    case DType::kBFloat16:
      return run_block<AnyNonfiniteBFloat>(static_cast<const bfloat16*>(data), count);
    case DType::kLowBits:
      break;
  }
  return false;
}

/// Both types of 16 bits have the same zeros.
bool any_nonzero(DType dtype, const void* data, int64 count) {
  if (dtype == DType::kFloat32) {
    return run_block<AnyNonzero<float, uint32>>(static_cast<const float*>(data), count);
  }
  return run_block<AnyNonzero<float16, uint16>>(static_cast<const float16*>(data), count);
}

void fence() {
#if defined(TORCHAMP_AVX2)
  _mm_sfence();
#endif
}

}  // namespace torchamp::cpu
