// A whole training step as one CUDA graph: forward, scaled backward, unscale, scale update and step
// are captured once and replayed with new data. Overflows are detected and steps are skipped inside
// the graph, because the loss scale, the flags and the decision to skip live on the device.
//
//     cuda_graph --level O2 --steps 300 --out steps.csv
//
// It needs a CUDA device, the CUDA build of LibTorch and the CUDA toolkit's headers. Without them
// it prints a message and does nothing.
#include "arguments.h"

#ifdef WITH_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torchamp/amp.h>

#include "digits.h"
#include "report.h"

constexpr int64_t kBatchSize = 64;
constexpr double kLearningRate = 1e-3;
constexpr double kFirstLossScale = 1 << 24;  // too high for float16: the first steps overflow
constexpr int kWarmUpSteps = 3;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear fc1{kPixels, 64};
  torch::nn::Linear fc2{64, 10};

  NetImpl() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  torch::Tensor forward(const torch::Tensor& images) {
    return fc2(torch::relu(fc1(images.flatten(1))));
  }
};
TORCH_MODULE(Net);

/// One training step, always on the same tensors, for a graph to replay.
class StaticStep {
 public:
  StaticStep(amp::Amped<Net>& amped, const Digits& example)
      : amped_(amped), batch_{example.images.clone(), example.labels.clone()} {
    loss_ = torch::zeros({}, example.images.device());
  }

  /// Never waits for the device.
  void run() {
    auto& [model, optimizer] = amped_;
    optimizer.zero_grad();
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(model(batch_.images), batch_.labels);
    amp::scale_loss(loss, optimizer).backward();
    optimizer.step();
    loss_.copy_(loss.detach());
  }

  void load(const Digits& batch) {
    batch_.images.copy_(batch.images);
    batch_.labels.copy_(batch.labels);
  }

  /// Loads a batch, calls `run_or_replay` and reads the result, which waits for the device.
  template <class RunOrReplay>
  Step measure(int64_t index, const Digits& batch, RunOrReplay&& run_or_replay) {
    const amp::LossScaler& scaler = amped_.model.amp()->loss_scaler();
    const double loss_scale = scaler.loss_scale();
    load(batch);
    run_or_replay();
    return {index, loss_.item<float>(), loss_scale, scaler.found_inf().item<float>() != 0};
  }

 private:
  amp::Amped<Net>& amped_;
  Digits batch_;
  torch::Tensor loss_;
};

c10::Stream side_stream(torch::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

/// Trains: some eager steps, which also create state that must exist before a capture, then
/// replays.
void train(StaticStep& step, const Digits& digits, int64_t steps, Report& report) {
  const auto sample = [&digits] {
    const torch::Tensor rows = torch::randint(digits.labels.size(0), {kBatchSize});
    return take(digits, rows);
  };
  at::cuda::CUDAGraph graph;
  const torch::Device device = digits.labels.device();
  torch::cuda::synchronize(device.index());  // pending work is in another stream
  const c10::StreamGuard not_the_default_stream(side_stream(device));
  for (int64_t i = 0; i < kWarmUpSteps; ++i) {
    report.add(step.measure(i, sample(), [&step] { step.run(); }));
  }
  graph.capture_begin();
  step.run();
  graph.capture_end();
  for (int64_t i = kWarmUpSteps; i < steps; ++i) {
    report.add(step.measure(i, sample(), [&graph] { graph.replay(); }));
  }
}

double accuracy(amp::Amped<Net>& amped, const Digits& digits) {
  torch::NoGradGuard no_grad;
  const torch::Tensor right = amped.model(digits.images).argmax(1).eq(digits.labels);
  return right.to(torch::kDouble).mean().item<double>();
}

void run(const Arguments& arguments) {
  const torch::Device device = arguments.device();
  if (!device.is_cuda()) {
    std::cout << "cuda_graph: NOTHING WAS RUN: it needs a CUDA device, got " << device << '\n';
    return;
  }
  const int64_t steps = arguments.integer("--steps");
  const Split digits = load_digits(EXAMPLES_DATA "/digits.csv", device);
  torch::manual_seed(arguments.integer("--seed"));
  Net net;
  net->to(device);
  // torchamp's optimizers skip on the device; LibTorch's would have to wait for it.
  amp::optim::FusedAdam adam(net->parameters(), amp::optim::FusedAdamOptions(kLearningRate));
  amp::Amped<Net> amped =
      amp::initialize(net, adam, amp::Options(arguments.text("--level")).verbosity(0));
  amp::LossScaler& scaler = amped.model.amp()->loss_scaler();
  if (scaler.dynamic()) scaler.set_loss_scale(kFirstLossScale);

  StaticStep step(amped, take(digits.train, torch::arange(kBatchSize)));
  Report report("cuda_graph", steps, arguments.text("--out"));
  train(step, digits.train, steps, report);
  std::cout << "test_accuracy " << accuracy(amped, digits.test) << "\nskipped_steps "
            << report.skipped_steps() << '\n';
}
#else
void run(const Arguments&) {
  std::cout << "cuda_graph: NOTHING WAS RUN: it needs a CUDA device, and was built without CUDA\n";
}
#endif

int main(int argc, char** argv) {
  return run_example([&] {
    run(Arguments(argc, argv,
                  {{"--level", "O2"},
                   {"--steps", "300"},
                   {"--seed", "1"},
                   {"--device", "auto"},
                   {"--out", ""}}));
  });
}
