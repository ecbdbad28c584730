#include <torchamp/detail/tools.h>

#include "autocast/open_autocast.h"

namespace torchamp::detail {

void backward_without_casts(const at::Tensor& loss) {
  const ShieldBackward shield;
  loss.backward();
}

}  // namespace torchamp::detail
