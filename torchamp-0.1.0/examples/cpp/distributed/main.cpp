// Local SGD on several ranks: each steps by the grads of its own batches, and the weights are
// averaged every few steps. process_group makes all ranks skip the same steps, and keeps their loss
// scales alike, although their grads differ.
//
//     launch.sh 2 ./distributed --steps 200
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torchamp/amp.h>

#include <iostream>

#include "arguments.h"
#include "digits.h"
#include "ranks.h"
#include "report.h"

constexpr int64_t kBatchSize = 64;
constexpr int64_t kAverageEvery = 8;
constexpr double kLearningRate = 0.2;
constexpr double kFirstLossScale = 1 << 24;  // too high for float16: the first steps overflow

struct NetImpl : torch::nn::Module {
  torch::nn::Linear fc1{kPixels, 48};
  torch::nn::Linear fc2{48, 10};

  NetImpl() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  torch::Tensor forward(const torch::Tensor& images) {
    return fc2(torch::relu(fc1(images.flatten(1))));
  }
};
TORCH_MODULE(Net);

using AmpedNet = amp::Amped<Net>;

amp::Options options(Ranks& ranks) {
  const auto all_reduce_max = [&ranks](const torch::Tensor& t) { ranks.all_reduce_max(t); };
  return amp::Options("O2")
      .process_group({all_reduce_max, ranks.rank(), ranks.size()})
      .verbosity(0);
}

/// A step by this rank's own grads.
Step train_step(AmpedNet& amped, const Digits& batch) {
  auto& [model, optimizer] = amped;
  const double loss_scale = model.amp()->loss_scaler().loss_scale();
  optimizer.zero_grad();
  const torch::Tensor loss =
      torch::nn::functional::cross_entropy(model(batch.images), batch.labels);
  amp::scale_loss(loss, optimizer).backward();
  const bool stepped = optimizer.step();
  return {0, loss.item<float>(), loss_scale, !stepped};
}

void average(amp::Optimizer& optimizer, Ranks& ranks) {
  torch::NoGradGuard no_grad;
  for (const torch::Tensor& param : optimizer.master_params()) ranks.all_reduce_mean(param);
}

double accuracy(AmpedNet& amped, const Digits& digits) {
  torch::NoGradGuard no_grad;
  const torch::Tensor right = amped.model(digits.images).argmax(1).eq(digits.labels);
  return right.to(torch::kDouble).mean().item<double>();
}

void run(const Arguments& arguments) {
  const int64_t steps = arguments.integer("--steps"), seed = arguments.integer("--seed");
  const torch::Device device = arguments.device();
  Ranks ranks;
  const Split digits = load_digits(EXAMPLES_DATA "/digits.csv", device);
  torch::manual_seed(seed);  // the same weights on every rank
  Net net;
  net->to(device);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(kLearningRate));
  AmpedNet amped = amp::initialize(net, sgd, options(ranks));
  amped.model.amp()->loss_scaler().set_loss_scale(kFirstLossScale);

  torch::manual_seed(seed + 1 + ranks.rank());  // other batches on every rank
  Report report("distributed", steps, ranks.rank() == 0 ? arguments.text("--out") : "");
  for (int64_t i = 0; i < steps; ++i) {
    const torch::Tensor rows = torch::randint(digits.train.labels.size(0), {kBatchSize}).to(device);
    Step step = train_step(amped, take(digits.train, rows));
    step.index = i;
    report.add(step);
    if ((i + 1) % kAverageEvery == 0) average(amped.optimizer, ranks);
  }
  average(amped.optimizer, ranks);
  std::ostringstream summary;
  summary << "rank" << ranks.rank() << "_accuracy " << accuracy(amped, digits.test) << "\nrank"
          << ranks.rank() << "_skipped_steps " << report.skipped_steps() << "\nrank" << ranks.rank()
          << "_loss_scale " << amped.model.amp()->loss_scaler().loss_scale() << '\n';
  std::cout << summary.str() << std::flush;
  ranks.leave();
}

int main(int argc, char** argv) {
  return run_example([&] {
    run(Arguments(argc, argv,
                  {{"--steps", "200"}, {"--seed", "1"}, {"--device", "auto"}, {"--out", ""}}));
  });
}
