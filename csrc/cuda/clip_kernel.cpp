#include "cuda/launch.h"

namespace torchamp::cuda {

void clip(Queue queue, const Clipping& clipping) {
  Clipping argument = clipping;
  launch(queue, Kernel::kClip, 1, &argument);
}

}  // namespace torchamp::cuda
