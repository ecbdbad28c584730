#include "backends/kernels.h"
#include "cpu/isa.h"
#include "cpu/prefetch.h"
#include "cpu/walk.h"
#include "math/unscale.h"

namespace torchamp::cpu {
namespace {

struct UnscaleBlock {
  TORCHAMP_MATH static void run(const float* grad, float* master, const Span& span,
                                float inv_scale) {
    for_each_element(
        span, [=](int i, int) { master[i] = unscaled(grad[i], inv_scale); }, grad);
  }
};

struct AccumulateBlock {
  TORCHAMP_MATH static void run(const float* grad, const float* before, float* master,
                                const Span& span, float inv_scale) {
    for_each_element(
        span, [=](int i, int) { master[i] = unscaled_onto(grad[i], inv_scale, before[i]); }, grad,
        before);
  }
};

}  // namespace

void unscale(const Plan& plan, InvScale inv_scale, bool accumulate, Flags flags) {
  transform(plan, 1, flags, [&, factor = factor(inv_scale)](const Span& span, bool stream) {
    float taken[kBlock], before[kBlock], given[kBlock];
    const bool bad = any_nonfinite(plan, span, 0);
    const float* grad = load(plan, span, 0, taken);
    float* master = output(plan, span, 1, stream && !accumulate, given);
    if (accumulate) {
      run_block<AccumulateBlock>(grad, load(plan, span, 1, before), master, span, factor);
    } else {
      run_block<UnscaleBlock>(grad, master, span, factor);
    }
    store(plan, span, 1, master, stream && !accumulate);
    return bad || any_overflow(plan, span, 1, master);
  });
}

}  // namespace torchamp::cpu
