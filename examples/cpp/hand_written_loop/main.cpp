// Mixed precision by hand: a float16 network with float32 masters, using only LossScaler and the
// ops. It shows what initialize, scale_loss and step do, for programs with their own training loop.
//
//     hand_written_loop --steps 200 --out steps.csv
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>
#include <torchamp/amp.h>

#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

using Tensors = std::vector<torch::Tensor>;

torch::nn::Sequential make_net(torch::Device device) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::ReLU(),   //
                            torch::nn::Linear(64, 64), torch::nn::ReLU(),  //
                            torch::nn::Linear(64, 2));
  net->to(device);
  return net;
}

/// Points of the plane, float32 [n, 2], and whether each is in a ring, int64 [n].
std::pair<torch::Tensor, torch::Tensor> random_points(int64_t count, torch::Device device) {
  const torch::Tensor points = torch::randn({count, 2}).to(device);
  const torch::Tensor radius = points.norm(2, 1);
  return {points, radius.gt(0.7).logical_and(radius.lt(1.5)).to(torch::kLong)};
}

/// Float32 copies of parameters, with grads to unscale into.
Tensors make_masters(const Tensors& params) {
  Tensors masters;
  for (const torch::Tensor& param : params) {
    masters.push_back(param.detach().clone().set_requires_grad(true));
    masters.back().mutable_grad() = torch::zeros_like(masters.back());
  }
  return masters;
}

Tensors grads_of(const Tensors& params) {
  Tensors grads;
  for (const torch::Tensor& param : params) grads.push_back(param.grad());
  return grads;
}

amp::LossScalerOptions scaler_options() {
  amp::LossScalerOptions options;
  options.init_scale = 1 << 24;  // too high for float16: the first steps overflow
  options.rule.growth_interval = 50;
  return options;
}

torch::Tensor call(torch::nn::Sequential& net, const torch::Tensor& points) {
  return net->forward(points.to(torch::kHalf)).to(torch::kFloat);
}

/// Returns how many steps were skipped.
int64_t train(torch::nn::Sequential& net, int64_t steps, torch::Device device, std::ostream& csv) {
  const Tensors params = net->parameters();
  const Tensors masters = make_masters(params);  // before the cast, which loses precision
  amp::cast_module(*net, torch::kHalf, /*keep_batchnorm_fp32=*/true);
  torch::optim::SGD sgd(masters, torch::optim::SGDOptions(0.2).momentum(0.9));
  amp::LossScaler scaler(scaler_options(), masters[0].device());
  int64_t skipped = 0;

  for (int64_t i = 0; i < steps; ++i) {
    const auto [points, labels] = random_points(64, device);
    const double loss_scale = scaler.loss_scale();
    net->zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(call(net, points), labels);
    const torch::Tensor inv_scale = scaler.inv_scale();  // before update changes the scale
    scaler.scale(loss).backward();
    const torch::Tensor found_inf = scaler.found_inf();
    amp::ops::unscale(grads_of(params), grads_of(masters), inv_scale, found_inf);
    scaler.update();
    const bool finite = found_inf.item<float>() == 0;  // waits for the device
    if (finite) {
      sgd.step();
      amp::ops::copy_cast(masters, params);
    }
    csv << i << ',' << loss.item<float>() << ',' << loss_scale << ',' << !finite << '\n';
    skipped += !finite;
  }
  return skipped;
}

int main(int argc, char** argv) try {
  std::map<std::string, std::string> options{
      {"--steps", "200"},
      {"--device", torch::cuda::is_available() ? "cuda" : "cpu"},
      {"--out", "/dev/null"}};
  for (int i = 1; i < argc; i += 2) {
    TORCH_CHECK(options.count(argv[i]) == 1 && i + 1 < argc,
                "expected an option and its value, got ", argv[i]);
    options[argv[i]] = argv[i + 1];
  }
  std::ofstream csv(options["--out"]);
  TORCH_CHECK(csv, "expected --out to name a writable file, got ", options["--out"]);
  csv << std::setprecision(9) << "step,loss,loss_scale,skipped\n";

  const torch::Device device(options["--device"]);
  torch::nn::Sequential net = make_net(device);
  const int64_t skipped = train(net, std::stoll(options["--steps"]), device, csv);
  const torch::NoGradGuard no_grad;
  const auto [points, labels] = random_points(1024, device);
  const torch::Tensor right = call(net, points).argmax(1).eq(labels);
  std::cout << "test_accuracy " << right.to(torch::kDouble).mean().item<double>()
            << "\nskipped_steps " << skipped << '\n';
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
}
