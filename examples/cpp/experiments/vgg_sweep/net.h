// VGG16 with batch norm.
#pragma once

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <algorithm>
#include <cmath>
#include <vector>

/// For images [n, 3, 32, 32] of 10 classes. `width`: of its layers, 1 is VGG16.
inline torch::nn::Sequential make_vgg16(double width) {
  torch::nn::Sequential net;
  int64_t channels = 3;
  for (const std::vector<int64_t>& block : std::vector<std::vector<int64_t>>{
           {64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}}) {
    for (const int64_t layer : block) {
      const int64_t out = std::max<int64_t>(1, std::lround(width * static_cast<double>(layer)));
      net->push_back(
          torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, out, 3).padding(1).bias(false)));
      net->push_back(torch::nn::BatchNorm2d(out));
      net->push_back(torch::nn::ReLU());
      channels = out;
    }
    net->push_back(torch::nn::MaxPool2d(2));
  }
  net->push_back(torch::nn::Flatten());
  net->push_back(torch::nn::Linear(channels, 10));
  return net;
}
