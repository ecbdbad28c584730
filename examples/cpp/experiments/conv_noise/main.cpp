// Convolutions on random images: time and memory of the opt levels, relative to float32.
//
//     conv_noise --levels O0 O1 O2 O4 O5 --preset original
//
// Nothing can be learned from random labels, so only time and memory matter, as long as all levels
// have the same losses. Writes conv_noise.csv and summary.md. Exits with status 1 if the losses of
// a level differ from float32's by more than 2 % after one epoch. examples/python/conv_noise.py is
// the same experiment in Python.
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torchamp/amp.h>

#include "net.h"
#include "summary.h"

constexpr double kLearningRate = 1e-3;

using AmpedNet = amp::Amped<Net>;

struct Batch {
  torch::Tensor images;  ///< [n, 3, size, size], 0 … 1
  torch::Tensor labels;  ///< [n], 0 or 1
};

std::vector<Batch> random_batches(const Arguments& arguments) {
  const int64_t images = arguments.integer("--images"), size = arguments.integer("--size");
  const torch::Device device = arguments.device();
  torch::manual_seed(arguments.integer("--seed"));
  const torch::Tensor pixels = torch::rand({images, 3, size, size}).to(device);
  const torch::Tensor labels = torch::randint(2, {images}).to(torch::kFloat).to(device);
  std::vector<Batch> batches;
  for (const torch::Tensor& rows : torch::arange(images).split(arguments.integer("--batch"))) {
    const torch::Tensor index = rows.to(device);
    batches.push_back({pixels.index_select(0, index), labels.index_select(0, index)});
  }
  return batches;
}

/// One pass over the batches: the loop that the levels share.
Epoch train_epoch(AmpedNet& amped, const std::vector<Batch>& batches, torch::Device device) {
  auto& [model, optimizer] = amped;
  torch::Tensor sum = torch::zeros({}, device);
  int64_t skipped_steps = 0;
  const double begin = seconds_now(device);
  for (const Batch& batch : batches) {
    optimizer.zero_grad();
    const torch::Tensor loss =
        torch::nn::functional::binary_cross_entropy_with_logits(model(batch.images), batch.labels);
    amp::scale_loss(loss, optimizer).backward();
    skipped_steps += !optimizer.step();
    sum += loss.detach();
  }
  const double seconds = seconds_now(device) - begin;
  return {sum.item<double>() / static_cast<double>(batches.size()), seconds, skipped_steps};
}

/// Trains from the same weights at every level, and prints a line per epoch.
Run train(const std::string& level, const Arguments& arguments) {
  const torch::Device device = arguments.device();
  const std::vector<Batch> batches = random_batches(arguments);
  const PeakMemory peak(device);
  Net net(arguments.integer("--size"), arguments.integer("--channels"));
  net->to(device);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(kLearningRate));
  AmpedNet amped = amp::initialize(net, adam, amp::Options(level).verbosity(0));

  Run run{level, {}, {}, 0};
  const int64_t epochs = arguments.integer("--epochs");
  for (int64_t i = 1; i <= epochs; ++i) {
    run.epochs.push_back(train_epoch(amped, batches, device));
    std::cout << level << "  epoch " << i << '/' << epochs << "  "
              << fixed(run.epochs.back().seconds, 2) << " s  loss "
              << fixed(run.epochs.back().loss, 4) << std::endl;
  }
  const auto forward = [&] { return amped.model(batches[0].images.clone()); };
  const bool has_masters = amped.optimizer.amp()->properties().master_weights.value_or(false);
  run.sizes = count_sizes(*net, adam, has_masters, forward);
  run.used_mib = peak.mib(run.sizes);
  return run;
}

/// Trainings of one level after those of another, so that a slowdown of the machine meets all.
std::vector<Run> train_in_turn(const Arguments& arguments) {
  std::vector<Run> runs;
  for (const std::string& level : arguments.choices("--levels", "O0 O1 O2 O4 O5")) {
    runs.push_back(train(level, arguments));
  }
  for (int64_t repeat = 1; repeat < arguments.integer("--repeats"); ++repeat) {
    for (Run& run : runs) {
      for (const Epoch& epoch : train(run.level, arguments).epochs) run.epochs.push_back(epoch);
    }
  }
  return runs;
}

int run(const Arguments& arguments) {
  const std::vector<Run> runs = train_in_turn(arguments);
  const torch::Device device = arguments.device();
  const std::string& out = arguments.text("--out");
  write_csv(runs, out + "/conv_noise.csv");
  std::string verdicts = memory_label(device);
  for (size_t i = 1; i < runs.size(); ++i) verdicts += '\n' + verdict(runs[i], runs[0], device);
  return finish("Convolutions on random images",
                {caption(device), table(runs, device), bytes_table(runs), verdicts},
                disagreements(runs, arguments.number("--tolerance")), out);
}

int main(int argc, char** argv) {
  const Presets presets{{"small",
                         {{"--images", "64"},
                          {"--size", "64"},
                          {"--channels", "16"},
                          {"--batch", "16"},
                          {"--epochs", "5"},
                          {"--repeats", "3"}}},
                        {"original",
                         {{"--images", "800"},
                          {"--size", "256"},
                          {"--channels", "128"},
                          {"--batch", "50"},
                          {"--epochs", "10"},
                          {"--repeats", "3"}}}};
  return run_experiment([&] {
    return run(parse_command_line(argc, argv, "conv_noise_cpp",
                                  {{"--levels", "O0 O1 O2 O4 O5"}, {"--tolerance", "0.02"}},
                                  presets));
  });
}
