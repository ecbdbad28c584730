// Must compile with -Werror: each way of using scale_loss.
#include <torchamp/scale_loss.h>

void train(const at::Tensor& loss, const torchamp::Optimizer& optimizer) {
  {
    torchamp::scale_loss scaled_loss(loss, optimizer);
    scaled_loss.backward();
  }
  { torchamp::scale_loss(loss, optimizer).backward(); }
  { torchamp::scale_loss(loss, optimizer, {1, false}).backward(); }
  { torchamp::scale_loss(loss, optimizer, 1).backward(); }
  { torchamp::scale_loss(loss, {optimizer, optimizer}, 1).backward(); }
  torchamp::scale_loss(loss, optimizer, [](const at::Tensor& scaled) { scaled.backward(); });
}
