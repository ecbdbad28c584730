// The run whose checkpoints tests/old_checkpoints keeps. old_run.py of tests/python/support is its
// twin, and says why its numbers are the same on every machine.
#pragma once

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torchamp/optim/adam.h>
#include <torchamp/optim/lamb.h>
#include <torchamp/optim/novograd.h>
#include <torchamp/optim/sgd.h>
#include <torchamp/scale_loss.h>
#include <torchamp/serialize.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace torchamp::old_run {

using at::Tensor;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
using Params = std::vector<Tensor>;
using MakeOptimizer = std::function<OptimizerPtr(Params, double)>;
using Tree = c10::impl::GenericDict;

/// The steps before a checkpoint, and those that were done after it.
constexpr int kSteps = 3, kFurtherSteps = 2;

/// A matrix of 16 bits with a master, and a batch norm in float32 whose weight is frozen: its grads
/// are not exact.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    norm->weight.set_requires_grad(false);
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(at::tensor({0.5, -0.25, 1.0, 0.75}).view({2, 2}));
  }

  Tensor forward(const Tensor& x) {
    const Tensor hidden = linear(x);
    return hidden + norm(hidden.detach());
  }

  torch::nn::Linear linear =
      register_module("linear", torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)));
  torch::nn::BatchNorm1d norm = register_module(
      "norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(2).momentum(0.5)));
};
TORCH_MODULE(Net);

template <class Optimizer, class Options>
MakeOptimizer maker(const Options& options) {
  return [options](const Params& params, double lr) {
    Options with_lr = options;
    with_lr.lr(lr);
    return std::make_unique<Optimizer>(params, with_lr);
  };
}

inline const std::map<std::string, MakeOptimizer>& makers() {
  using namespace torch::optim;
  using namespace torchamp::optim;
  const std::tuple<double, double> betas{0.5, 0.75};
  const double decay = 0.125;
  static const std::map<std::string, MakeOptimizer> all{
      {"SGD", maker<SGD>(SGDOptions(1.0).momentum(0.5).weight_decay(decay))},
      {"Adam", maker<Adam>(AdamOptions(1.0).betas(betas))},
      {"Adagrad", maker<Adagrad>(AdagradOptions(1.0))},
      {"FusedSGD", maker<FusedSGD>(FusedSGDOptions(1.0).momentum(0.5).weight_decay(decay))},
      {"FusedAdam", maker<FusedAdam>(FusedAdamOptions(1.0).betas(betas).weight_decay(decay))},
      {"FusedAdamW", maker<FusedAdamW>(FusedAdamWOptions(1.0).betas(betas).weight_decay(decay))},
      {"FusedNovoGrad",
       maker<FusedNovoGrad>(FusedNovoGradOptions(1.0).betas(betas).weight_decay(decay))},
      {"FusedLAMB", maker<FusedLAMB>(FusedLAMBOptions(1.0).betas(betas).weight_decay(decay))}};
  return all;
}

/// What a run needs, before its first step.
struct Run {
  Run(const std::string& level, const std::string& name, double lr)
      : optimizer(makers().at(name)(net->parameters(), lr)),
        amped(initialize(net, *optimizer, Options(level).verbosity(0))) {}

  void backward(int step, double factor = 1.0) {
    const Tensor x = at::tensor({1.0F, 2.0F, -0.5F, std::ldexp(1.0F, step % 3)}).view({2, 2});
    const Tensor coefs =
        at::tensor({0.125F, 0.0F, -0.0625F, 0.25F / float(1 + step % 2)}).view({2, 2});
    const Tensor output = amped.model(x);
    scale_loss((output.to(at::kFloat) * coefs).sum() * factor, amped.optimizer).backward();
  }

  void train(int first, int end) {
    for (int step = first; step < end; ++step) {
      amped.optimizer.zero_grad();
      backward(step);
      amped.optimizer.step();
    }
  }

  /// At O2 an overflow skips a step and halves the loss scale.
  void train_from_the_start() {
    if (net->linear->weight.scalar_type() == at::kHalf) {
      backward(0, INFINITY);
      amped.optimizer.step();
    }
    train(0, kSteps);
  }

  Net net;
  OptimizerPtr optimizer;
  Amped<Net> amped;
};

/// The contents of a checkpoint, read by LibTorch alone.
inline Tree contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  return torch::pickle_load(bytes).toGenericDict();
}

/// The values of the model of a checkpoint as one float32 tensor, in the order of their names.
inline Tensor model_in(const Tree& checkpoint) {
  std::map<std::string, Tensor> sorted;
  for (const auto& entry : checkpoint.at("models").toList().get(0).toGenericDict()) {
    sorted[entry.key().toStringRef()] = entry.value().toTensor().flatten().to(at::kFloat);
  }
  std::vector<Tensor> values;
  for (const auto& [name, value] : sorted) values.push_back(value);
  return at::cat(values);
}

}  // namespace torchamp::old_run
