#include "cpu/walk.h"
#include "ops/kernels.h"

namespace torchamp::cpu {

void check(const Plan& plan, Flags flags) {
  for_each_piece_in_parallel(plan, [&](const Piece& piece) {
    report_nonzero(plan, piece, flags);
    const Span start{piece.tensor, piece.begin, 0};
    const DType dtype = plan.dtype(piece.tensor, 0);
    if (any_nonfinite(dtype, address_of(plan, start, 0), piece.end - piece.begin)) {
      raise_flags(plan, piece.tensor, flags);
    }
  });
}

}  // namespace torchamp::cpu
