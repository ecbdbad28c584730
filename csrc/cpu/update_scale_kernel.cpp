#include "backends/kernels.h"

namespace torchamp::cpu {

void update_scale(const ScaleUpdate& scale, const float* found_inf) {
  update(scale, *found_inf != 0.0f);
}

}  // namespace torchamp::cpu
