// languages exchange <level> <optimizer> <from> <first step> <end step> <to>
//
// <level> may be followed by "wide", whose net has 16 inputs instead of 4, and that by "float8".
//
// Loads a checkpoint, trains from the first step up to before the end step, and writes a
// checkpoint with the loaded one's extra, and the net alone, as LibTorch does, to <to>.net. Starts
// with new weights if <from> is "-". Sets the random numbers to the extra's "rng", and adds some
// that follow as "drawn". Network, batches and options match Python's tests.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>
#include <torchamp/scale_loss.h>
#include <torchamp/serialize.h>

#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace exchange {

/// As main.cpp makes it, by options such as "lr=0.125 momentum=0.5".
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& kind,
                                                        const std::string& options,
                                                        const std::vector<at::Tensor>& params);

namespace {

using at::Tensor;

/// Of each kind.
const std::map<std::string, std::string> kOptions{{"SGD", "lr=0.125 momentum=0.5"},
                                                  {"Adam", "lr=0.01 amsgrad=1"},
                                                  {"AdamW", "lr=0.01"},
                                                  {"Adagrad", "lr=0.01"},
                                                  {"RMSprop", "lr=0.01 momentum=0.5 centered=1"},
                                                  {"FusedSGD", "lr=0.125 momentum=0.5"},
                                                  {"FusedAdam", "lr=0.01"},
                                                  {"FusedAdamW", "lr=0.01"},
                                                  {"FusedNovoGrad", "lr=0.01"},
                                                  {"FusedLAMB", "lr=0.01"}};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t inputs)
      : first(register_module("first", torch::nn::Linear(inputs, 2 * inputs))),
        norm(register_module("norm", torch::nn::BatchNorm1d(2 * inputs))),
        last(register_module("last", torch::nn::Linear(2 * inputs, 3))) {}
  Tensor forward(const Tensor& x) { return last(at::relu(norm(first(x)))); }

  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};
TORCH_MODULE(Net);

/// The loss on the batch of that seed.
Tensor loss_of(torchamp::Model<Net>& model, int64_t seed) {
  const int64_t inputs = model.module()->first->options.in_features();
  const Tensor x = at::randn({16, inputs}, at::detail::createCPUGenerator(seed));
  return at::cross_entropy_loss(model(x).to(at::kFloat), x.sum(1).gt(0).to(at::kLong));
}

void train(torchamp::Amped<Net>& amped, int64_t first, int64_t end) {
  for (int64_t step = first; step < end; ++step) {
    amped.optimizer.zero_grad();
    { torchamp::scale_loss(loss_of(amped.model, step), amped.optimizer).backward(); }
    amped.optimizer.step();
  }
}

void run(const std::vector<std::string>& arguments) {
  const std::string& level = arguments.at(0);
  const auto has = [&](const char* word) { return level.find(word) != std::string::npos; };
  auto options = torchamp::Options(level.substr(0, 2)).verbosity(0);
  if (has("float8")) options.float8({"first"});
  Net net(has("wide") ? 16 : 4);
  const std::string& kind = arguments.at(1);
  const auto optimizer = make_optimizer(kind, kOptions.at(kind), net->parameters());
  auto amped = torchamp::initialize(net, *optimizer, options);
  torchamp::Extra extra;
  if (arguments.at(2) != "-") extra = torchamp::load(amped, arguments.at(2));
  if (extra.count("rng") != 0) {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    generator.set_state(extra.at("rng").toTensor());
    extra["drawn"] = at::rand({8});
    extra["cpp_rng"] = generator.get_state();
  }
  train(amped, std::stoll(arguments.at(3)), std::stoll(arguments.at(4)));
  torchamp::save(amped, arguments.at(5), extra);
  torch::save(net, arguments.at(5) + ".net");
}

}  // namespace

int main(const std::vector<std::string>& arguments) {
  try {
    run(arguments);
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << '\n';
    return 1;
  }
}

}  // namespace exchange
