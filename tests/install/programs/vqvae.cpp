// VQ-VAE-2: codebooks in buffers, which forward updates by averages, and the straight-through
// estimator.
#include <torch/nn/functional/embedding.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include "run.h"

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kDim = 8, kCodes = 16;

struct QuantizeImpl : nn::Module {
  QuantizeImpl() {
    codes = register_buffer("codes", torch::randn({kDim, kCodes}));
    cluster_size = register_buffer("cluster_size", torch::ones(kCodes));
    sums = register_buffer("sums", codes.clone());
  }

  /// Of x with channels last: the nearest codes, the distance to them, and their numbers.
  std::tuple<torch::Tensor, torch::Tensor, torch::Tensor> forward(const torch::Tensor& x) {
    const torch::Tensor flat = x.reshape({-1, kDim});
    const torch::Tensor distance =
        flat.pow(2).sum(1, true) - 2 * flat.matmul(codes) + codes.pow(2).sum(0, true);
    const torch::Tensor picked = distance.argmin(1);
    if (is_training()) update(flat.detach(), F::one_hot(picked, kCodes).to(flat.scalar_type()));
    const torch::Tensor nearest = F::embedding(picked, codes.t()).view_as(x);
    const torch::Tensor difference = (nearest.detach() - x).pow(2).mean();
    return {x + (nearest - x).detach(), difference, picked.view({x.size(0), -1})};
  }

  void update(const torch::Tensor& flat, const torch::Tensor& one_hot) {
    cluster_size.data().mul_(0.99).add_(one_hot.sum(0), 0.01);
    sums.data().mul_(0.99).add_(flat.t().matmul(one_hot), 0.01);
    const torch::Tensor n = cluster_size.sum();
    const torch::Tensor smoothed = (cluster_size + 1e-5) / (n + kCodes * 1e-5) * n;
    codes.data().copy_(sums / smoothed.unsqueeze(0));
  }

  torch::Tensor codes, cluster_size, sums;
};
TORCH_MODULE(Quantize);

struct VQVAEImpl : nn::Module {
  VQVAEImpl() {
    register_module("encode_bottom", encode_bottom);
    register_module("encode_top", encode_top);
    register_module("quantize_top", quantize_top);
    register_module("quantize_bottom", quantize_bottom);
    register_module("decode_top", decode_top);
    register_module("decode", decode);
  }

  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& image) {
    const torch::Tensor bottom = torch::relu(encode_bottom(image));
    auto [top, top_difference] = quantized(quantize_top, encode_top(bottom));
    top = decode_top(top);
    auto [fine, difference] = quantized(quantize_bottom, bottom + top);
    return {decode(torch::cat({fine, top}, 1)), top_difference + difference};
  }

  static std::pair<torch::Tensor, torch::Tensor> quantized(Quantize& quantize, torch::Tensor x) {
    x = x.permute({0, 2, 3, 1});
#ifdef WITH_TORCHAMP
    const auto dtype = x.scalar_type();
    auto [codes, difference, ids] = quantize(x.to(torch::kFloat));
    codes = codes.to(dtype);
#else
    auto [codes, difference, ids] = quantize(x);
#endif
    return {codes.permute({0, 3, 1, 2}), difference};
  }

  nn::Conv2d encode_bottom{nn::Conv2dOptions(1, kDim, 4).stride(2).padding(1)};
  nn::Conv2d encode_top{nn::Conv2dOptions(kDim, kDim, 4).stride(2).padding(1)};
  Quantize quantize_top, quantize_bottom;
  nn::ConvTranspose2d decode_top{nn::ConvTranspose2dOptions(kDim, kDim, 4).stride(2).padding(1)};
  nn::ConvTranspose2d decode{nn::ConvTranspose2dOptions(2 * kDim, 1, 4).stride(2).padding(1)};
};
TORCH_MODULE(VQVAE);

torch::Tensor images() {
  const torch::Tensor row = torch::arange(8) - 8 * torch::rand({8, 1, 1, 1});
  return torch::exp(-row.square() / 4).expand({8, 1, 8, 8});
}

void train(const Run& run) {
  VQVAE net;
  torch::optim::Adam adam(net->parameters(), 3e-3);
#ifdef WITH_TORCHAMP
  auto options = run.options();
  if (run.casts_weights()) options.keep_fp32({"quantize_top", "quantize_bottom"});
  auto amped = amp::initialize(net, adam, options);
  auto& [model, optimizer] = amped;
  if (run.resumes()) amp::load(amped, run.file("amp"));
#else
  VQVAE& model = net;
  torch::optim::Adam& optimizer = adam;
  if (run.resumes()) torch::load(net, run.file("net"));
  if (run.resumes()) torch::load(adam, run.file("adam"));
#endif

  for (int64_t i = run.first(); i < Run::kIterations; ++i) {
    if (run.saves_before(i)) {
#ifdef WITH_TORCHAMP
      amp::save(amped, run.file("amp"));
#else
      torch::save(net, run.file("net"));
      torch::save(adam, run.file("adam"));
#endif
    }
    torch::manual_seed(i);
    const torch::Tensor image = images();
    const auto [reconstructed, difference] = model(image);
    const torch::Tensor reconstruction = F::mse_loss(reconstructed, image);
    const torch::Tensor loss = run.loss(i, reconstruction + 0.25 * difference);
    optimizer.zero_grad();
#ifdef WITH_TORCHAMP
    amp::scale_loss(loss, optimizer).backward();
#else
    loss.backward();
#endif
    optimizer.step();
    print(i, {reconstruction, difference}, net->parameters(), optimizer);
  }
}
