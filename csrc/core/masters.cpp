#include <torchamp/detail/masters.h>
#include <torchamp/detail/optimizer_state.h>

namespace torchamp::core {

at::Tensor Masters::track(const at::Tensor& model_param, const at::Tensor& master) {
  const at::Tensor stepped = weights.track(model_param, master);
  grads.resize();
  return stepped;
}

void Masters::prepare_release() {
  for (OptimizerState* user : users) {
    TORCH_CHECK(!user->is_in_backward(),
                "release: expected no scale_loss to be open, but one is; release after it");
  }
  for (OptimizerState* user : users) user->refresh();
  weights.refresh();
  weights.adopt_data_writes();
}

}  // namespace torchamp::core
