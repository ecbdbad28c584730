// The task of both programs: a sine.
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <vector>

#include "report.h"

constexpr double kLearningRate = 1e-2;
constexpr double kFirstLossScale = 1 << 24;  // too high for float16: the first step overflows

struct NetImpl : torch::nn::Module {
  torch::nn::Linear fc1{1, 32};
  torch::nn::Linear fc2{32, 1};

  NetImpl() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  torch::Tensor forward(const torch::Tensor& x) { return fc2(torch::tanh(fc1(x))); }
};
TORCH_MODULE(Net);

struct Problem {
  torch::Tensor inputs;   ///< float32 [n, 1]
  torch::Tensor targets;  ///< float32 [n, 1]
};

inline Problem make_problem(torch::Device device) {
  const torch::Tensor inputs = torch::linspace(-2, 2, 64).unsqueeze(1).to(device);
  return {inputs, inputs.mul(2).sin()};
}
