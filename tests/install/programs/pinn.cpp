// PINN: a network by value that solves u'' = -π² sin(πx) from its own derivatives, by Adam first
// and then by LBFGS.
#include <torch/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize.h>

#include <cmath>

#include "run.h"

namespace F = torch::nn::functional;

struct Net : torch::nn::Module {
  Net() {
    register_module("first", first);
    register_module("hidden", hidden);
    register_module("last", last);
  }
  torch::Tensor forward(torch::Tensor& x) {
    const torch::Tensor y = torch::tanh(hidden(torch::tanh(first(x))));
    return last(y);
  }
  torch::nn::Linear first{1, 16}, hidden{16, 16}, last{16, 1};
};

torch::Tensor derivative(const torch::Tensor& of, const torch::Tensor& by) {
#ifdef WITH_TORCHAMP
  const amp::disable_casts off;
#endif
  return torch::autograd::grad({of}, {by}, {torch::ones_like(of)}, /*retain_graph=*/true,
                               /*create_graph=*/true)[0];
}

/// What the equation and the values at the ends leave.
template <class Model>
std::vector<torch::Tensor> residuals(Model& model, const torch::Tensor& points) {
  torch::Tensor x = points.clone().requires_grad_(true), ends = torch::tensor({{-1.0f}, {1.0f}});
  const torch::Tensor u = model.forward(x);
  const torch::Tensor curvature = derivative(derivative(u, x), x);
  return {curvature / (M_PI * M_PI) + torch::sin(M_PI * x), model.forward(ends)};
}

/// One iteration of an optimizer that takes a closure, which LBFGS calls several times.
template <class Model, class Optimizer>
void iterate(int64_t i, const Run& run, const Net& net, Model& model, Optimizer& optimizer) {
  torch::manual_seed(i);
  const torch::Tensor points = 2 * torch::rand({32, 1}) - 1;
  std::vector<torch::Tensor> losses;
  optimizer.step([&] {
    const auto left = residuals(model, points);
    const torch::Tensor equation = left[0].square().mean(), boundary = left[1].square().mean();
    if (losses.empty()) losses = {equation, boundary};
    const torch::Tensor loss = run.loss(i, equation + boundary);
    optimizer.zero_grad();
#ifdef WITH_TORCHAMP
    amp::scale_loss(loss, optimizer).backward();
#else
    loss.backward();
#endif
    return loss;
  });
  print(i, losses, net.parameters(), optimizer);
}

constexpr int64_t kOfAdam = 10;

void train_by_adam(const Run& run, Net& net) {
  torch::optim::Adam adam(net.parameters(), 1e-2);
#ifdef WITH_TORCHAMP
  auto amped = amp::initialize(net, adam, run.options());
  auto& [model, optimizer] = amped;
  if (run.resumes()) amp::load(amped, run.file("amp"));
#else
  auto& model = net;
  auto& optimizer = adam;
  if (run.resumes()) {
    torch::serialize::InputArchive archive;
    archive.load_from(run.file("net"));
    net.load(archive);
    torch::load(adam, run.file("adam"));
  }
#endif

  for (int64_t i = run.first(); i < kOfAdam; ++i) {
    if (run.saves_before(i)) {
#ifdef WITH_TORCHAMP
      amp::save(amped, run.file("amp"));
#else
      torch::serialize::OutputArchive archive;
      net.save(archive);
      archive.save_to(run.file("net"));
      torch::save(adam, run.file("adam"));
#endif
    }
    iterate(i, run, net, model, optimizer);
  }
#ifdef WITH_TORCHAMP
  amp::release(amped);
#endif
}

void train_by_lbfgs(const Run& run, Net& net) {
  torch::optim::LBFGS lbfgs(
      net.parameters(), torch::optim::LBFGSOptions(1).max_iter(3).line_search_fn("strong_wolfe"));
#ifdef WITH_TORCHAMP
  amp::Options options = run.options();
  if (run.level() != "O0") options.loss_scale(128);  // LBFGS needs a fixed one
  auto amped = amp::initialize(net, lbfgs, options);
  auto& [model, optimizer] = amped;
#else
  auto& model = net;
  auto& optimizer = lbfgs;
#endif
  for (int64_t i = kOfAdam; i < Run::kIterations; ++i) iterate(i, run, net, model, optimizer);
}

void train(const Run& run) {
  Net net;
  train_by_adam(run, net);
  train_by_lbfgs(run, net);
}
