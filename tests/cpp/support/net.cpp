#include "net.h"

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/relu.h>
#include <torchamp/optim/fused_optimizer.h>

namespace torchamp {

NetImpl::NetImpl()
    : first(register_module("first", torch::nn::Linear(4, 16))),
      last(register_module("last", torch::nn::Linear(16, 2))),
      norm(register_module("norm", torch::nn::BatchNorm1d(16))) {}

at::Tensor NetImpl::forward(const at::Tensor& data) {
  return last(at::relu(norm(first(data))));
}

Net make_net(at::Device device, uint64_t seed) {
  at::manual_seed(seed);
  Net net;
  net->to(device);
  return net;
}

Batch make_batch(at::Device device, unsigned seed) {
  const at::Tensor data = Random(seed).normal({64, 4}, at::kFloat, device);
  return {data, data.square().sum(1).gt(3.4).to(at::kLong)};
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return at::cross_entropy_loss(output, target);
}

bool result_of_skipped(const torch::optim::Optimizer& optimizer, at::Device device) {
  const bool is_fused = dynamic_cast<const optim::FusedOptimizer*>(&optimizer) != nullptr;
  return is_fused && !device.is_cpu();
}

std::vector<at::Tensor> params_of(const torch::nn::Module& module) {
  return module.parameters();
}

std::string dtypes_of(const std::vector<at::Tensor>& tensors) {
  std::string text;
  for (const auto& tensor : tensors) {
    text += (text.empty() ? "" : " ") + std::string(at::toString(tensor.scalar_type()));
  }
  return text;
}

}  // namespace torchamp
