#include "cuda/launch.h"

namespace torchamp::cuda {

void conclude(Queue queue, const Verdict& verdict) {
  Verdict argument = verdict;
  launch(queue, Kernel::kConclude, 1, &argument);
}

}  // namespace torchamp::cuda
