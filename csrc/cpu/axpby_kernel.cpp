#include "backends/kernels.h"
#include "cpu/isa.h"
#include "cpu/prefetch.h"
#include "cpu/walk.h"
#include "math/axpby.h"

namespace torchamp::cpu {
namespace {

struct AxpbyBlock {
  TORCHAMP_MATH static void run(const float* x, const float* y, float* out, const Span& span,
                                float a, float b) {
    for_each_element(
        span, [=](int i, int) { out[i] = torchamp::axpby(a, x[i], b, y[i]); }, x, y);
  }
};

bool covers(Checked checked, Checked list) {
  return (static_cast<uint8>(checked) & static_cast<uint8>(list)) != 0;
}

}  // namespace

void axpby(const Plan& plan, float a, float b, Checked checked, Flags flags) {
  const bool check_x = covers(checked, Checked::kX), check_y = covers(checked, Checked::kY);
  transform(plan, 2, flags, [&](const Span& span, bool stream) {
    float x_taken[kBlock], y_taken[kBlock], given[kBlock];
    const bool bad =
        (check_x && any_nonfinite(plan, span, 0)) || (check_y && any_nonfinite(plan, span, 1));
    const float* x = load(plan, span, 0, x_taken);
    const float* y = load(plan, span, 1, y_taken);
    float* out = output(plan, span, 2, stream, given);
    run_block<AxpbyBlock>(x, y, out, span, a, b);
    store(plan, span, 2, out, stream);
    return bad || any_overflow(plan, span, 2, out);
  });
}

}  // namespace torchamp::cpu
