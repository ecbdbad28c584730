// A whole training step as one CUDA graph: forward, scaled backward, unscale, scale update and step
// are captured once and replayed with new data. Overflows are detected and steps are skipped inside
// the graph, because the loss scale, the flags and the decision to skip live on the device.
//
//     cuda_graph --level O2
//
// It needs a CUDA device, the CUDA build of LibTorch and the CUDA toolkit's headers. Without them
// it prints a message and does nothing.
#ifdef WITH_CUDA
#include <torch/nn.h>
#include <torchamp/graphed.h>
#endif
#include <torch/cuda.h>
#include <torchamp/amp.h>

#include <iostream>
#include <map>
#include <string>
#include <utility>

#ifdef WITH_CUDA
constexpr int64_t kSteps = 300;
constexpr int64_t kBatchSize = 64;

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

void run(const std::string& level, torch::Device device) {
  torch::nn::Sequential net = make_net(device);
  // torchamp's optimizers skip on the device; LibTorch's would have to wait for it.
  amp::optim::FusedAdam adam(net->parameters(), amp::optim::FusedAdamOptions(1e-2));
  amp::Amped<torch::nn::Sequential> amped = amp::initialize(net, adam, level);
  auto& [model, optimizer] = amped;
  amp::LossScaler& scaler = model.amp()->loss_scaler();
  if (scaler.dynamic()) scaler.set_loss_scale(1 << 24);  // too high: the first steps overflow

  // The first three calls run as they are, the fourth is captured, and the rest replay it.
  auto iteration = amp::graphed([&amped](const torch::Tensor& points, const torch::Tensor& labels) {
    amped.optimizer.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(amped.model(points), labels);
    amp::scale_loss(loss, amped.optimizer).backward();
    amped.optimizer.step();
    return loss.detach();
  });
  torch::Tensor loss;
  for (int64_t i = 0; i < kSteps; ++i) {
    const auto [points, labels] = random_points(kBatchSize, device);
    loss = iteration(points, labels);
  }
  torch::cuda::synchronize(device.index());
  const torch::NoGradGuard no_grad;
  const auto [points, labels] = random_points(1024, device);
  const torch::Tensor right = model(points).argmax(1).eq(labels);
  std::cout << "test_accuracy " << right.to(torch::kDouble).mean().item<double>() << "\nlast_loss "
            << loss.item<float>() << "\nskipped_steps " << amp::telemetry(optimizer).skipped_steps
            << '\n';
}
#else
void run(const std::string&, torch::Device) {
  std::cout << "cuda_graph: NOTHING WAS RUN: it needs a CUDA device, and was built without CUDA\n";
}
#endif

int main(int argc, char** argv) try {
  std::map<std::string, std::string> options{
      {"--level", "O2"}, {"--device", torch::cuda::is_available() ? "cuda" : "cpu"}};
  for (int i = 1; i < argc; i += 2) {
    TORCH_CHECK(options.count(argv[i]) == 1 && i + 1 < argc,
                "expected an option and its value, got ", argv[i]);
    options[argv[i]] = argv[i + 1];
  }
  const torch::Device device(options["--device"]);
  if (device.is_cuda()) {
    run(options["--level"], device);
  } else {
    std::cout << "cuda_graph: NOTHING WAS RUN: it needs a CUDA device, got " << device << '\n';
  }
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
}
