// A whole training step as one CUDA graph: forward, scaled backward, unscale, scale update and step
// are captured once and replayed with new data. Overflows are detected and steps are skipped inside
// the graph, because the loss scale, the flags and the decision to skip live on the device.
//
//     cuda_graph --level O2
//
// It needs a CUDA device, the CUDA build of LibTorch and the CUDA toolkit's headers. Without them
// it prints a message and does nothing.
#ifdef WITH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn.h>
#endif
#include <torch/cuda.h>
#include <torchamp/amp.h>

#include <iostream>
#include <map>
#include <string>
#include <utility>

#ifdef WITH_CUDA
constexpr int64_t kSteps = 300;
constexpr int64_t kWarmUpSteps = 3;
constexpr int64_t kBatchSize = 64;

using AmpedNet = amp::Amped<torch::nn::Sequential>;

torch::nn::Sequential make_net(torch::Device device) {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::ReLU(),   //
                            torch::nn::Linear(64, 64), torch::nn::ReLU(),  //
                            torch::nn::Linear(64, 2));
  net->to(device);
  return net;
}

/// What a graph reads and writes: tensors that stay where they are.
struct Static {
  torch::Tensor points;  ///< float32 [kBatchSize, 2]
  torch::Tensor labels;  ///< int64 [kBatchSize]
  torch::Tensor loss;    ///< float32 []
};

/// Points of the plane, float32 [n, 2], and whether each is in a ring, int64 [n].
std::pair<torch::Tensor, torch::Tensor> random_points(int64_t count, torch::Device device) {
  const torch::Tensor points = torch::randn({count, 2}).to(device);
  const torch::Tensor radius = points.norm(2, 1);
  return {points, radius.gt(0.7).logical_and(radius.lt(1.5)).to(torch::kLong)};
}

/// Never waits for the device.
void train_step(AmpedNet& amped, Static& data) {
  auto& [model, optimizer] = amped;
  optimizer.zero_grad();
  const torch::Tensor loss = torch::nn::functional::cross_entropy(model(data.points), data.labels);
  amp::scale_loss(loss, optimizer).backward();
  optimizer.step();
  data.loss.copy_(loss.detach());
}

/// Loads a batch, calls `run_or_replay`, and returns whether the step was skipped, which waits for
/// the device.
template <class RunOrReplay>
bool load_and(const RunOrReplay& run_or_replay, const AmpedNet& amped, Static& data) {
  const auto [points, labels] = random_points(kBatchSize, data.loss.device());
  data.points.copy_(points);
  data.labels.copy_(labels);
  run_or_replay();
  return amped.model.amp()->loss_scaler().found_inf().item<float>() != 0;
}

/// Some eager steps, which also create state that must exist before a capture, then replays.
/// Returns how many were skipped.
int64_t train(AmpedNet& amped, Static& data) {
  int64_t skipped = 0;
  at::cuda::CUDAGraph graph;
  const torch::Device device = data.loss.device();
  torch::cuda::synchronize(device.index());  // pending work is in another stream
  const c10::impl::VirtualGuardImpl streams(device.type());
  const c10::StreamGuard not_the_default_stream(streams.getStreamFromGlobalPool(device));
  for (int64_t i = 0; i < kWarmUpSteps; ++i) {
    skipped += load_and([&] { train_step(amped, data); }, amped, data);
  }
  graph.capture_begin();
  train_step(amped, data);
  graph.capture_end();
  for (int64_t i = kWarmUpSteps; i < kSteps; ++i) {
    skipped += load_and([&] { graph.replay(); }, amped, data);
  }
  return skipped;
}

void run(const std::string& level, torch::Device device) {
  torch::nn::Sequential net = make_net(device);
  // torchamp's optimizers skip on the device; LibTorch's would have to wait for it.
  amp::optim::FusedAdam adam(net->parameters(), amp::optim::FusedAdamOptions(1e-2));
  AmpedNet amped = amp::initialize(net, adam, level);
  amp::LossScaler& scaler = amped.model.amp()->loss_scaler();
  if (scaler.dynamic()) scaler.set_loss_scale(1 << 24);  // too high: the first steps overflow

  const auto [first_points, first_labels] = random_points(kBatchSize, device);
  Static data{first_points, first_labels, torch::zeros({}, first_points.device())};
  const int64_t skipped = train(amped, data);
  const torch::NoGradGuard no_grad;
  const auto [points, labels] = random_points(1024, device);
  const torch::Tensor right = amped.model(points).argmax(1).eq(labels);
  std::cout << "test_accuracy " << right.to(torch::kDouble).mean().item<double>() << "\nlast_loss "
            << data.loss.item<float>() << "\nskipped_steps " << skipped << '\n';
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
