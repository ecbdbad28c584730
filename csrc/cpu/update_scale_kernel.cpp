#include "ops/kernels.h"

namespace torchamp::cpu {

void update_scale(const MovingScale& scale, const float* found_inf) {
  move_scale(scale, *found_inf != 0.0f);
}

}  // namespace torchamp::cpu
