#include "cpu/rounding.h"

#include <algorithm>

#include "cpu/isa.h"
#include "math/rounding.h"

namespace torchamp::cpu {
namespace {

struct Stochastically {
  TORCHAMP_MATH static void run(const float* from, bfloat16* to, int count, NoiseStream stream,
                                int list) {
    for (int i = 0; i < count; ++i) to[i] = round_stochastically(from[i], noise(stream, i, list));
  }
};

}  // namespace

void store_stochastically(const Plan& plan, const Span& span, int list, const float* values,
                          uint32 key) {
  if (plan.dtype(span.tensor, list) != DType::kBFloat16) {
    store(plan, span, list, values, false);
    return;
  }
  bfloat16* const to = reinterpret_cast<bfloat16*>(address_of(plan, span, list));
  for (int first = 0; first < span.count;) {
    const int64 begin = span.begin + first;
    const int count =
        static_cast<int>(std::min<int64>(span.count - first, noise_end(begin) - begin));
    run_block<Stochastically>(values + first, to + first, count, noise_from(key, begin), list);
    first += count;
  }
}

}  // namespace torchamp::cpu
