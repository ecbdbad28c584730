// The generator and the discriminator.
#pragma once

#include <torch/nn.h>

constexpr int64_t kLatent = 32;

/// [n, kLatent, 1, 1] → images [n, 1, 8, 8], 0 … 1
struct GeneratorImpl : torch::nn::Module {
  torch::nn::ConvTranspose2d conv1{torch::nn::ConvTranspose2dOptions(kLatent, 32, 4).bias(false)};
  torch::nn::BatchNorm2d bn1{32};
  torch::nn::ConvTranspose2d conv2{
      torch::nn::ConvTranspose2dOptions(32, 1, 4).stride(2).padding(1)};

  GeneratorImpl() {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
  }

  torch::Tensor forward(const torch::Tensor& latent) {
    return torch::sigmoid(conv2(torch::relu(bn1(conv1(latent)))));
  }
};
TORCH_MODULE(Generator);

/// images [n, 1, 8, 8] → logits [n], high where the image looks real
struct DiscriminatorImpl : torch::nn::Module {
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 16, 4).stride(2).padding(1)};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(16, 32, 4)};
  torch::nn::Linear fc{32, 1};

  DiscriminatorImpl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("fc", fc);
  }

  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor features = torch::leaky_relu(conv1(images), 0.2);
    return fc(torch::leaky_relu(conv2(features), 0.2).flatten(1)).flatten();
  }
};
TORCH_MODULE(Discriminator);
