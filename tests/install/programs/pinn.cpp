// PINN: a network by value that solves u'' = -π² sin(πx) from its own derivatives.
#include <torch/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
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

int main(int argc, char** argv) {
  const Run run(argc, argv);
  torch::manual_seed(0);
  Net net;
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

  for (int64_t i = run.first(); i < Run::kIterations; ++i) {
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
    torch::manual_seed(i);
    const auto left = residuals(model, 2 * torch::rand({32, 1}) - 1);
    const torch::Tensor equation = left[0].square().mean(), boundary = left[1].square().mean();
    const torch::Tensor loss = run.loss(i, equation + boundary);
    optimizer.zero_grad();
#ifdef WITH_TORCHAMP
    amp::scale_loss(loss, optimizer).backward();
#else
    loss.backward();
#endif
    optimizer.step();
    print(i, {equation, boundary}, net.parameters(), optimizer);
  }
}
