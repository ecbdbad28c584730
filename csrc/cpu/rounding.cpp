#include "cpu/rounding.h"

#include <algorithm>

#include "cpu/isa.h"
#include "cpu/prefetch.h"
#include "math/rounding.h"

namespace torchamp::cpu {
namespace {

struct Stochastically {
  TORCHAMP_MATH static void run(const float* from, bfloat16* to, int count, NoiseStream stream,
                                int list) {
    for (int i = 0; i < count; ++i) to[i] = round_stochastically(from[i], noise(stream, i, list));
  }
};

template <class T>
struct Reconstruct {
  /// `values`: rounded ones, to which the low bits are added.
  TORCHAMP_MATH static void run(float* values, const low_bits16* low_bits, const Span& span) {
    const auto add = [=](int i, int) {
      values[i] = Halves<T>::reconstruct(values[i], low_bits[i]);
    };
    for_each_element(span, add, low_bits);
  }
};

template <class T>
struct Remain {
  TORCHAMP_MATH static void run(const float* values, const float* rounded, low_bits16* to,
                                int count) {
    for (int i = 0; i < count; ++i) to[i] = Halves<T>::low_bits(values[i], rounded[i]);
  }
};

template <class T>
T* data_of(const Plan& plan, const Span& span, int list) {
  return reinterpret_cast<T*>(address_of(plan, span, list));
}

}  // namespace

void store_stochastically(const Plan& plan, const Span& span, int list, const float* values,
                          uint32 key) {
  if (plan.dtype(span.tensor, list) != DType::kBFloat16) {
    store(plan, span, list, values, false);
    return;
  }
  bfloat16* const to = data_of<bfloat16>(plan, span, list);
  for (int first = 0; first < span.count;) {
    const int64 begin = span.begin + first;
    const int count =
        static_cast<int>(std::min<int64>(span.count - first, noise_end(begin) - begin));
    run_block<Stochastically>(values + first, to + first, count, noise_from(key, begin), list);
    first += count;
  }
}

void load_reconstructed(const Plan& plan, const Span& span, int high, int low_bits, float* values) {
  load(plan, span, high, values);
  const bool is_half = plan.dtype(span.tensor, high) == DType::kFloat16;
  const auto* counts = data_of<const low_bits16>(plan, span, low_bits);
  is_half ? run_block<Reconstruct<float16>>(values, counts, span)
          : run_block<Reconstruct<bfloat16>>(values, counts, span);
}

void store_split(const Plan& plan, const Span& span, int high, int low_bits, const float* values) {
  store(plan, span, high, values, false);
  float buffer[kBlock];
  const float* rounded = load(plan, span, high, buffer);
  const bool is_half = plan.dtype(span.tensor, high) == DType::kFloat16;
  auto* counts = data_of<low_bits16>(plan, span, low_bits);
  is_half ? run_block<Remain<float16>>(values, rounded, counts, span.count)
          : run_block<Remain<bfloat16>>(values, rounded, counts, span.count);
}

}  // namespace torchamp::cpu
