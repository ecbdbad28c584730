// Must compile with many warnings as errors: programs have them on, also in what they instantiate.

// A program may have declared the classes that Python's torch has.
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

#include <torch/nn/pimpl.h>
#include <torchamp/amp.h>
#include <torchamp/torch_amp.h>

#include <string_view>

void scale(torch::amp::GradScaler& scaler, const at::Tensor& loss) {
  scaler.scale(loss).backward();
}
void scale(torch::cuda::amp::GradScaler& scaler, const at::Tensor& loss) {
  const torch::cuda::amp::autocast half;
  const torch::amp::autocast casts(c10::kCPU, c10::kBFloat16);
  const torch::autocast more(c10::kCPU);
  scale(static_cast<torch::amp::GradScaler&>(scaler), loss);
}

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
  void clear() {}
};
TORCH_MODULE(Net);

void train(Net net, torch::optim::Optimizer& optimizer, const at::Tensor& x) {
  auto amped = torchamp::initialize(net, optimizer, "O2");
  amped.model.call(&NetImpl::clear);
  torchamp::scale_loss(amped.model(x), amped.optimizer).backward();
  torchamp::save(amped, "file");
  torchamp::load(amped.model, std::vector{amped.optimizer}, "file");
  torchamp::release(amped);
}

static_assert(std::is_invocable_v<const torchamp::Model<Net>&, const at::Tensor&>);
static_assert(!std::is_invocable_v<const torchamp::Model<Net>&, at::Tensor, int>);

/// Each way of naming a level, a scale and a part.
void choose(const Net& net, std::string_view level, bool use_amp) {
  (void)torchamp::initialize(net, level);
  torchamp::Options options(std::string("O2"));
  options.opt_level(level.data()).loss_scale(0).loss_scale(128).loss_scale(2.5f).loss_scale("1");
  options.keep_fp32("head").keep_fp32({"head", "norm"}).keep_fp32(std::string("head"));
  options.keep_fp32({});
  const torchamp::GradScaler scaler(torchamp::GradScalerOptions(1024).enabled(use_amp));
  const torchamp::autocast casts(c10::Device(c10::kCPU),
                                 torchamp::AutocastOptions(c10::kHalf).enabled(use_amp));
}

/// Each way of using scale_loss.
void use(const at::Tensor& loss, const torchamp::Optimizer& optimizer) {
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
