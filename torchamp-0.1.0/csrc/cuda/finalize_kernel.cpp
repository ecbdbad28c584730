#include "cuda/launch.h"

namespace torchamp::cuda {

void finalize(Queue queue, const Finalization& end) {
  launch(queue, Kernel::kFinalize, 1, kThreads, &end);
}

}  // namespace torchamp::cuda
