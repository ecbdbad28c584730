#include <torchamp/detail/masters.h>

namespace torchamp::core {

at::Tensor Masters::track(const at::Tensor& model_param, const at::Tensor& master) {
  const at::Tensor stepped = weights.track(model_param, master);
  grads.resize();
  return stepped;
}

void Masters::split() {
  TORCH_CHECK(grads.lazy(),
              "MasterWeights::split: expected deferred masters, got materialized ones");
  weights.split();
}

}  // namespace torchamp::core
