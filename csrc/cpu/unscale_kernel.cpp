#include "cpu/isa.h"
#include "cpu/walk.h"
#include "math/unscale.h"
#include "ops/kernels.h"

namespace torchamp::cpu {
namespace {

struct UnscaleBlock {
  TORCHAMP_MATH static void run(const float* grad, float* master, int count, float inv_scale) {
    for (int i = 0; i < count; ++i) master[i] = unscaled(grad[i], inv_scale);
  }
};

struct AccumulateBlock {
  TORCHAMP_MATH static void run(const float* grad, const float* before, float* master, int count,
                                float inv_scale) {
    for (int i = 0; i < count; ++i) master[i] = unscaled_onto(grad[i], inv_scale, before[i]);
  }
};

}  // namespace

void unscale(const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags) {
  transform(plan, 1, flags, [&, factor = factor(inv_scale)](const Span& span, bool stream) {
    float taken[kBlock], before[kBlock], given[kBlock];
    const bool bad =
        any_nonfinite(plan.dtype(span.tensor, 0), address_of(plan, span, 0), span.count);
    const float* grad = load(plan, span, 0, taken);
    float* master = output(plan, span, 1, stream && !accumulate, given);
    if (accumulate) {
      run_block<AccumulateBlock>(grad, load(plan, span, 1, before), master, span.count, factor);
    } else {
      run_block<UnscaleBlock>(grad, master, span.count, factor);
    }
    return store(plan, span, 1, master, stream && !accumulate) || bad;
  });
}

}  // namespace torchamp::cpu
