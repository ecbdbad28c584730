#include "cuda/launch.h"

namespace torchamp::cuda {

void conclude(Queue queue, const Verdict& verdict) {
  launch(queue, Kernel::kConclude, 1, kThreads, &verdict);
}

}  // namespace torchamp::cuda
