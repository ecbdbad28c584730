// Must not compile with -Werror: the guard would be gone before anything is backpropagated.
#include <torchamp/scale_loss.h>

void train(const at::Tensor& loss, const torchamp::Optimizer& optimizer) {
  [[maybe_unused]] const std::vector<torchamp::Optimizer> optimizers = {optimizer};
  [[maybe_unused]] const torchamp::ScaleLossOptions options;
  torchamp::scale_loss(ARGUMENTS);
}
