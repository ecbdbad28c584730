#include "cpu/isa.h"
#include "cpu/walk.h"
#include "math/axpby.h"
#include "ops/kernels.h"

namespace torchamp::cpu {
namespace {

struct AxpbyBlock {
  TORCHAMP_MATH static void run(const float* x, const float* y, float* out, int count, float a,
                                float b) {
    for (int i = 0; i < count; ++i) out[i] = torchamp::axpby(a, x[i], b, y[i]);
  }
};

bool has_nonfinite(const Plan& plan, const Span& span, int list) {
  return any_nonfinite(plan.dtype(span.tensor, list), address_of(plan, span, list), span.count);
}

bool covers(Checked checked, Checked list) {
  return (static_cast<uint8>(checked) & static_cast<uint8>(list)) != 0;
}

}  // namespace

void axpby(const Plan& plan, float a, float b, Checked checked, Flags flags) {
  const bool check_x = covers(checked, Checked::kX), check_y = covers(checked, Checked::kY);
  transform(plan, 2, flags, [&](const Span& span, bool stream) {
    float x_taken[kBlock], y_taken[kBlock], given[kBlock];
    const bool bad =
        (check_x && has_nonfinite(plan, span, 0)) || (check_y && has_nonfinite(plan, span, 1));
    const float* x = load(plan, span, 0, x_taken);
    const float* y = load(plan, span, 1, y_taken);
    float* out = output(plan, span, 2, stream, given);
    run_block<AxpbyBlock>(x, y, out, span.count, a, b);
    return store(plan, span, 2, out, stream) || bad;
  });
}

}  // namespace torchamp::cpu
