#include "cuda/launch.h"

namespace torchamp::cuda {

void clip(Queue queue, const Clipping& clipping) {
  launch(queue, {Function::kClip}, 1, kThreads, &clipping);
}

}  // namespace torchamp::cuda
