#include "backends/parallel.h"

#include <ATen/Parallel.h>

namespace torchamp {

void parallel_for(int64 count, const std::function<void(int64, int64)>& body) {
  at::parallel_for(0, count, 1, body);
}

}  // namespace torchamp
