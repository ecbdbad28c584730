// A denoiser for points in the plane.
#pragma once

#include <torch/nn.h>

constexpr int64_t kWidth = 64;

/// Noisy points [n, 2] and the diffusion time of each [n, 1], 0 … 1 → the predicted noise [n, 2].
struct DenoiserImpl : torch::nn::Module {
  torch::nn::Linear fc1{3, kWidth};
  torch::nn::Linear fc2{kWidth, kWidth};
  torch::nn::Linear fc3{kWidth, 2};

  DenoiserImpl() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    register_module("fc3", fc3);
  }

  torch::Tensor forward(const torch::Tensor& points, const torch::Tensor& progress) {
    const torch::Tensor x = torch::silu(fc1(torch::cat({points, progress}, 1)));
    return fc3(torch::silu(fc2(x)));
  }
};
TORCH_MODULE(Denoiser);
