// Must compile with many warnings as errors: programs have them on, also in what they instantiate.
#include <torch/nn/pimpl.h>
#include <torchamp/amp.h>
#include <torchamp/torch_amp.h>

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
