// Must compile: a program that has declared the classes that Python's torch has.
namespace torch {
class autocast;
namespace amp {
class GradScaler;
class autocast;
}  // namespace amp
namespace cuda::amp {
class GradScaler;
class autocast;
}  // namespace cuda::amp
}  // namespace torch

#include <torchamp/torch_amp.h>

void scale(torch::amp::GradScaler& scaler, const at::Tensor& loss) {
  scaler.scale(loss).backward();
}
void scale(torch::cuda::amp::GradScaler& scaler, const at::Tensor& loss) {
  const torch::cuda::amp::autocast half;
  const torch::amp::autocast casts(c10::kCPU, c10::kBFloat16);
  const torch::autocast more(c10::kCPU);
  scale(static_cast<torch::amp::GradScaler&>(scaler), loss);
}
