#include "backends/kernels.h"

namespace torchamp::cpu {

void clip(const Clipping& clipping) {
  clip_by_norm(clipping);
}

}  // namespace torchamp::cpu
