#include "cuda/launch.h"

namespace torchamp::cuda {

void finalize(Queue queue, const Finalization& end) {
  launch(queue, {Function::kFinalize}, 1, kThreads, &end);
}

}  // namespace torchamp::cuda
