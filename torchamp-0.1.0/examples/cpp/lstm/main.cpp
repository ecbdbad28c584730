// An LSTM on packed sequences at O1: it learns to recall the first symbol of sequences of different
// lengths.
//
//     lstm --level O1 --steps 400 --out steps.csv
//
// Under O1 the LSTM and the linear layer run in float16, the loss in float32, and the weights stay
// float32. The program itself casts nothing.
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torchamp/amp.h>

#include "arguments.h"
#include "net.h"
#include "report.h"

constexpr int64_t kBatchSize = 32;
constexpr int64_t kShortest = 2;
constexpr int64_t kLongest = 8;
constexpr double kLearningRate = 1e-2;

struct Batch {
  torch::Tensor symbols;  ///< int64 [n, kLongest]; beyond a row's length they are noise
  torch::Tensor lengths;  ///< int64 [n], on the CPU
  torch::Tensor first;    ///< int64 [n]
};

using AmpedRecaller = amp::Amped<Recaller>;

Batch random_batch(int64_t count, torch::Device device) {
  const torch::Tensor symbols = torch::randint(kSymbols, {count, kLongest}).to(device);
  return {symbols, torch::randint(kShortest, kLongest + 1, {count}), symbols.select(1, 0)};
}

Step train_step(AmpedRecaller& amped, const Batch& batch) {
  auto& [model, optimizer] = amped;
  const double loss_scale = model.amp()->loss_scaler().loss_scale();
  optimizer.zero_grad();
  const torch::Tensor loss =
      torch::nn::functional::cross_entropy(model(batch.symbols, batch.lengths), batch.first);
  amp::scale_loss(loss, optimizer).backward();
  const bool stepped = optimizer.step();
  return {0, loss.item<float>(), loss_scale, !stepped};
}

/// The fraction of `batch` whose first symbol the model recalls.
double accuracy(AmpedRecaller& amped, const Batch& batch) {
  torch::NoGradGuard no_grad;
  const torch::Tensor recalled = amped.model(batch.symbols, batch.lengths).argmax(1);
  return recalled.eq(batch.first).to(torch::kDouble).mean().item<double>();
}

void run(const Arguments& arguments) {
  const torch::Device device = arguments.device();
  const int64_t steps = arguments.integer("--steps");
  torch::manual_seed(arguments.integer("--seed"));
  Recaller net;
  net->to(device);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(kLearningRate));
  AmpedRecaller amped =
      amp::initialize(net, adam, amp::Options(arguments.text("--level")).verbosity(0));

  Report report("lstm", steps, arguments.text("--out"));
  for (int64_t i = 0; i < steps; ++i) {
    Step step = train_step(amped, random_batch(kBatchSize, device));
    step.index = i;
    report.add(step);
  }
  std::cout << "accuracy " << accuracy(amped, random_batch(256, device)) << "\nskipped_steps "
            << report.skipped_steps() << '\n';
}

int main(int argc, char** argv) {
  return run_example([&] {
    run(Arguments(argc, argv,
                  {{"--level", "O1"},
                   {"--steps", "400"},
                   {"--seed", "1"},
                   {"--device", "auto"},
                   {"--out", ""}}));
  });
}
