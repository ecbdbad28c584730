#include "backends/kernels.h"
#include "cpu/isa.h"
#include "cpu/prefetch.h"
#include "cpu/walk.h"

namespace torchamp::cpu {
namespace {

struct ScaleBlock {
  TORCHAMP_MATH static void run(const float* in, float* out, const Span& span, float scale) {
    for_each_element(
        span, [=](int i, int) { out[i] = in[i] * scale; }, in);
  }
};

}  // namespace

void scale(const Plan& plan, float scale, Flags flags) {
  transform(plan, 1, flags, [&](const Span& span, bool stream) {
    float taken[kBlock], given[kBlock];
    const bool bad = any_nonfinite(plan, span, 0);
    const float* in = load(plan, span, 0, taken);
    float* out = output(plan, span, 1, stream, given);
    run_block<ScaleBlock>(in, out, span, scale);
    store(plan, span, 1, out, stream);
    return bad || any_overflow(plan, span, 1, out);
  });
}

}  // namespace torchamp::cpu
