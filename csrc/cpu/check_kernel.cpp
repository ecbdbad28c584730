#include "backends/kernels.h"
#include "cpu/walk.h"

namespace torchamp::cpu {

void check(const Plan& plan, Flags flags) {
  for_each_piece_in_parallel(plan, [&](const Piece& piece) {
    if (any_nonfinite(plan, whole(piece), 0)) raise_flags(plan, piece.tensor, flags);
  });
}

}  // namespace torchamp::cpu
