#include "cpu/rounding.h"

#include "cpu/isa.h"
#include "math/rounding.h"

namespace torchamp::cpu {
namespace {

struct ByChance {
  TORCHAMP_MATH static void run(const float* from, bfloat16* to, int count, int64 begin, int list,
                                uint32 key) {
    for (int i = 0; i < count; ++i) {
      to[i] = round_by_chance(from[i], noise(key, begin + i, list));
    }
  }
};

template <class T>
struct Join {
  TORCHAMP_MATH static void run(const T* high, const remainder16* remainders, float* to,
                                int count) {
    for (int i = 0; i < count; ++i) to[i] = joined(high[i], remainders[i]);
  }
};

template <class T>
struct Remain {
  TORCHAMP_MATH static void run(const float* from, const T* high, remainder16* to, int count) {
    for (int i = 0; i < count; ++i) to[i] = remainder_of(from[i], high[i]);
  }
};

template <class T>
T* data_of(const Plan& plan, const Span& span, int list) {
  return reinterpret_cast<T*>(address_of(plan, span, list));
}

template <class T>
void join(const Plan& plan, const Span& span, int high, int remainders, float* values) {
  run_block<Join<T>>(static_cast<const T*>(data_of<T>(plan, span, high)),
                     static_cast<const remainder16*>(data_of<remainder16>(plan, span, remainders)),
                     values, span.count);
}

template <class T>
void remain(const Plan& plan, const Span& span, int high, int remainders, const float* values) {
  run_block<Remain<T>>(values, static_cast<const T*>(data_of<T>(plan, span, high)),
                       data_of<remainder16>(plan, span, remainders), span.count);
}

}  // namespace

void store_by_chance(const Plan& plan, const Span& span, int list, const float* values,
                     uint32 key) {
  if (plan.dtype(span.tensor, list) != DType::kBFloat16) {
    store(plan, span, list, values, false);
    return;
  }
  run_block<ByChance>(values, data_of<bfloat16>(plan, span, list), span.count, span.begin, list,
                      key);
}

void load_joined(const Plan& plan, const Span& span, int high, int remainders, float* values) {
  const bool is_half = plan.dtype(span.tensor, high) == DType::kFloat16;
  const auto join_as = is_half ? join<float16> : join<bfloat16>;
  join_as(plan, span, high, remainders, values);
}

void store_split(const Plan& plan, const Span& span, int high, int remainders,
                 const float* values) {
  store(plan, span, high, values, false);
  const bool is_half = plan.dtype(span.tensor, high) == DType::kFloat16;
  const auto remain_as = is_half ? remain<float16> : remain<bfloat16>;
  remain_as(plan, span, high, remainders, values);
}

}  // namespace torchamp::cpu
