// The program of docs/libtorch.md: a plain LibTorch loop, and its ports to torchamp. The guide
// shows the code between two markers of the same name.
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim/adamw.h>
#include <torchamp/amp.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>

namespace F = torch::nn::functional;

constexpr int64_t kSteps = 200;
constexpr int64_t kMicroBatches = 4;

torch::nn::Sequential make_net(torch::Device device) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::ReLU(),   //
                            torch::nn::Linear(64, 64), torch::nn::ReLU(),  //
                            torch::nn::Linear(64, 2));
  net->to(device);
  return net;
}

/// Points of the plane, float32 [64, 2], and whether each is in a ring, int64 [64].
std::pair<torch::Tensor, torch::Tensor> next_batch(torch::Device device) {
  const torch::Tensor points = torch::randn({64, 2}).to(device);
  const torch::Tensor radius = points.norm(2, 1);
  return {points, radius.gt(0.7).logical_and(radius.lt(1.5)).to(torch::kLong)};
}

/// The fraction of new points that the network classifies correctly.
template <class Net>
double accuracy(Net&& net, torch::Device device) {
  torch::NoGradGuard no_grad;
  double right = 0;
  for (int i = 0; i < 16; ++i) {
    const auto [points, labels] = next_batch(device);
    right += net(points).argmax(1).eq(labels).to(torch::kDouble).mean().template item<double>();
  }
  return right / 16;
}

double train_plainly(torch::Device device) {
  // [plain]
  torch::nn::Sequential net = make_net(device);
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-2));

  for (int64_t i = 0; i < kSteps; ++i) {
    const auto [points, labels] = next_batch(device);
    adam.zero_grad();
    const torch::Tensor loss = F::cross_entropy(net->forward(points), labels);
    loss.backward();
    adam.step();
  }
  // [plain]
  return accuracy([&](const torch::Tensor& points) { return net->forward(points); }, device);
}

double train_with_grad_scaler(torch::Device device) {
  torch::nn::Sequential net = make_net(device);
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-2));
  // [grad_scaler]
  amp::GradScaler scaler;

  for (int64_t i = 0; i < kSteps; ++i) {
    const auto [points, labels] = next_batch(device);
    adam.zero_grad();
    torch::Tensor loss;
    {
      const amp::autocast half(device.type(), torch::kHalf);
      loss = F::cross_entropy(net->forward(points), labels);
    }
    scaler.scale(loss).backward();
    scaler.unscale_(adam);
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    scaler.step(adam);
    scaler.update();
  }
  // [grad_scaler]
  return accuracy([&](const torch::Tensor& points) { return net->forward(points); }, device);
}

double train_at_o2(torch::Device device) {
  torch::nn::Sequential net = make_net(device);
  const auto [first_points, first_labels] = next_batch(device);
  const torch::Tensor points = first_points, labels = first_labels;
  // [preflight]
  const auto loss_of = [&](const auto& model) { return F::cross_entropy(model(points), labels); };
  std::cout << amp::preflight(net, loss_of) << '\n';
  // [preflight]
  // [o2]
  auto amped = amp::initialize(net, torch::optim::AdamW(net->parameters(), 1e-2), "O2");
  auto& [model, optimizer] = amped;

  for (int64_t i = 0; i < kSteps; ++i) {
    const auto [points, labels] = next_batch(device);
    optimizer.zero_grad();
    const torch::Tensor loss = F::cross_entropy(model(points), labels);
    amp::scale_loss(loss, optimizer).backward();
    optimizer.step();
  }
  // [o2]
  return accuracy(model, device);
}

using AmpedNet = amp::Amped<torch::nn::Sequential>;

void train_step(AmpedNet& amped, torch::Device device) {
  // [step]
  auto& [model, optimizer] = amped;
  optimizer.zero_grad();
  for (int64_t k = 0; k < kMicroBatches; ++k) {
    const auto [points, labels] = next_batch(device);
    const torch::Tensor loss = F::cross_entropy(model(points), labels) / kMicroBatches;
    amp::scale_loss scaled_loss(loss, optimizer);
    scaled_loss.backward();
  }
  torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
  optimizer.step();
  // [step]
}

/// Trains a few more steps, on batches that do not depend on earlier ones.
double continue_training(AmpedNet& amped, torch::Device device) {
  torch::manual_seed(2);
  for (int64_t i = 0; i < 10; ++i) train_step(amped, device);
  return accuracy(amped.model, device);
}

/// Trains, saves and continues. Then loads into new objects, as a new process would, and continues.
std::pair<double, double> train_and_resume(torch::Device device, const std::string& path) {
  // [fused]
  torch::nn::Sequential net = make_net(device);
  amp::optim::FusedAdamW adam(net->parameters(), amp::optim::FusedAdamWOptions(1e-2));
  auto amped = amp::initialize(net, adam, "O2");
  // [fused]
  for (int64_t i = 0; i < kSteps; ++i) train_step(amped, device);
  // [save]
  amp::save(amped, path);
  // [save]

  torch::nn::Sequential other_net = make_net(device);
  amp::optim::FusedAdamW other_adam(other_net->parameters());
  auto resumed = amp::initialize(other_net, other_adam, "O2");
  // [load]
  amp::load(resumed, path);
  // [load]
  return {continue_training(amped, device), continue_training(resumed, device)};
}

double train_with_average(torch::Device device) {
  torch::nn::Sequential net = make_net(device);
  amp::optim::FusedAdamW adam(net->parameters(), amp::optim::FusedAdamWOptions(1e-2));
  auto amped = amp::initialize(net, adam, "O2");
  // [average]
  amp::AveragedModel target(amped.model, /*decay=*/0.9);
  for (int64_t i = 0; i < kSteps; ++i) {
    train_step(amped, device);
    target.update_parameters(amped.model);
  }
  // [average]
  return accuracy([&](const torch::Tensor& points) { return target->forward(points); }, device);
}

// [function]
struct Product : torch::autograd::Function<Product> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x.mm(weight.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0].mm(saved[1]), grads[0].t().mm(saved[0])};
  }
};

torch::Tensor product(const torch::Tensor& x, const torch::Tensor& weight) {
  return Product::apply(x, weight);
}

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& points) {
    const torch::Tensor hidden = torch::relu(first(points));
    return last(torch::relu(amp::half_function(product)(hidden, middle->weight)));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(2, 64));
  torch::nn::Linear middle = register_module("middle", torch::nn::Linear(64, 64));
  torch::nn::Linear last = register_module("last", torch::nn::Linear(64, 2));
};
// [function]

double train_at_o1(torch::Device device) {
  torch::manual_seed(1);
  Net net;
  net.to(device);
  auto amped = amp::initialize(net, torch::optim::AdamW(net.parameters(), 1e-2), "O1");
  for (int64_t i = 0; i < kSteps; ++i) {
    const auto [points, labels] = next_batch(device);
    amped.optimizer.zero_grad();
    amp::scale_loss(F::cross_entropy(amped.model(points), labels), amped.optimizer).backward();
    amped.optimizer.step();
  }
  return accuracy(amped.model, device);
}

int main(int argc, char** argv) try {
  const torch::Device device = torch::cuda::is_available() ? torch::kCUDA : torch::kCPU;
  const std::string path = argc > 1 ? argv[1] : "ten_minutes.pt";
  std::cout << "plain       " << train_plainly(device) << '\n';
  std::cout << "GradScaler  " << train_with_grad_scaler(device) << '\n';
  const double at_o2 = train_at_o2(device);
  std::cout << "O2          " << at_o2 << '\n';
  const auto [uninterrupted, resumed] = train_and_resume(device, path);
  std::cout << "fused       " << uninterrupted << "\nresumed     " << resumed << '\n';
  std::cout << "average     " << train_with_average(device) << '\n';
  std::cout << "function    " << train_at_o1(device) << '\n';
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return EXIT_FAILURE;
}
