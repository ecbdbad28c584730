// Three convolutions and a linear layer.
#pragma once

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

/// The sigmoid is part of the loss: under float16 the binary cross entropy of a sigmoid overflows.
struct NetImpl : torch::nn::Module {
  torch::nn::Conv2d conv1, conv2, conv3;
  torch::nn::Linear fc;

  NetImpl(int64_t size, int64_t channels)
      : conv1(torch::nn::Conv2dOptions(3, channels, 3).padding(1).stride(2)),
        conv2(torch::nn::Conv2dOptions(channels, channels, 3).padding(1)),
        conv3(torch::nn::Conv2dOptions(channels, channels, 3).padding(1)),
        fc(channels * (size / 2) * (size / 2), 1) {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("conv3", conv3);
    register_module("fc", fc);
  }

  /// [n, 3, size, size] → logits [n]
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv1(x));
    x = torch::relu(conv2(x));
    x = torch::relu(conv3(x));
    return fc(x.flatten(1)).squeeze(1);
  }
};
TORCH_MODULE(Net);
