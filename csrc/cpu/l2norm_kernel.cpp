#include "backends/kernels.h"
#include "cpu/isa.h"
#include "cpu/prefetch.h"
#include "cpu/walk.h"
#include "math/l2norm.h"

namespace torchamp::cpu {
namespace {

/// Squares are added to several float sums in turn; a block is too short to lose bits.
struct SumOfSquaresBlock {
  TORCHAMP_MATH static double run(const float* values, const Span& span) {
    float sums[kLanes] = {};
    const auto add = [&](int i, int lane) { sums[lane] = add_square(sums[lane], values[i]); };
    for_each_element(span, add, values);
    double total = 0.0;
    for (int lane = 0; lane < kLanes; ++lane) total += sums[lane];
    return total;
  }
};

double sum_of_squares(const Plan& plan, const Piece& piece) {
  double total = 0.0;
  float taken[kBlock];
  for_each_block(piece, 0, [&](const Span& span) {
    total += run_block<SumOfSquaresBlock>(load(plan, span, 0, taken), span);
  });
  return total;
}

}  // namespace

/// Each step from one piece to the next goes to the next unit, the next tensor or both, so unit +
/// tensor numbers the pieces: every sum has its own slot, and the slots are added in the same order
/// on any number of threads.
void l2norm(const Plan& plan, float* norm, float* per_tensor, Flags flags, const float* skip) {
  std::vector<double> slots(units_of(plan) + plan.tensors(), 0.0);
  const bool skips = is_set(skip);
  for_each_piece_in_parallel(plan, [&](const Piece& piece) {
    if (skips) return;
    const double sum = sum_of_squares(plan, piece);
    slots[piece.unit + piece.tensor] = sum;
    if (!std::isfinite(sum) && any_nonfinite(plan, whole(piece), 0)) {
      raise_flags(plan, piece.tensor, flags);
    }
  });
  double total = 0.0;
  for (int64 t = 0; t < plan.tensors(); ++t) {
    double of_tensor = 0.0;
    for (int64 u = plan.offsets[t] / kUnit; u <= (plan.offsets[t + 1] - 1) / kUnit; ++u) {
      of_tensor += slots[u + t];
    }
    if (per_tensor != nullptr)
      per_tensor[plan.positions[t]] = static_cast<float>(std::sqrt(of_tensor));
    total += of_tensor;
  }
  *norm = static_cast<float>(std::sqrt(total));
}

}  // namespace torchamp::cpu
