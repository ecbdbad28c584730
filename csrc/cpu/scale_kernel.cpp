#include "cpu/isa.h"
#include "cpu/walk.h"
#include "ops/kernels.h"

namespace torchamp::cpu {
namespace {

struct ScaleBlock {
  TORCHAMP_MATH static void run(const float* in, float* out, int count, float scale) {
    for (int i = 0; i < count; ++i) out[i] = in[i] * scale;
  }
};

}  // namespace

void scale(const Plan& plan, float scale, Flags flags) {
  transform(plan, 1, flags, [&](const Span& span, bool stream) {
    float taken[kBlock], given[kBlock];
    const bool bad =
        any_nonfinite(plan.dtype(span.tensor, 0), address_of(plan, span, 0), span.count);
    const float* in = load(plan, span, 0, taken);
    float* out = output(plan, span, 1, stream, given);
    run_block<ScaleBlock>(in, out, span.count, scale);
    return store(plan, span, 1, out, stream) || bad;
  });
}

}  // namespace torchamp::cpu
