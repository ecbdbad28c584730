// Time, memory and accuracy of VGG16 by batch size, in float32, float16 and mixed precision.
//
//     vgg_sweep --levels O0 O3 O1 O2 O5 --batch 32 64 128 --data cifar10 DIR
//
// Writes runs.csv and summary.md. Exits with status 1 if the first loss of a level differs from the
// first level's by more than 2 %, or from ten epochs on its best test accuracy by more than 0.01.
// examples/python/vgg_sweep.py is the same experiment in Python.
#include <sstream>

#include "arms.h"
#include "images.h"
#include "lab.h"
#include "net.h"
#include "summary.h"

constexpr double kLearningRate = 0.02;
constexpr double kMomentum = 0.9;

/// One pass over the images in a new random order. The last batch is left out if it is small.
Epoch train_epoch(const Arm& arm, const Digits& images, int64_t batch) {
  const torch::Device device = images.images.device();
  std::vector<double> losses;
  int64_t skipped_steps = 0;
  const auto rows = torch::randperm(images.labels.size(0)).split(batch);
  const double begin = seconds_now(device);
  for (const torch::Tensor& each : rows) {
    if (each.size(0) < batch) continue;
    const StepResult step = train_step(arm, take(images, each));
    losses.push_back(step.loss);
    skipped_steps += step.skipped;
  }
  const double seconds = seconds_now(device) - begin;
  const double count = static_cast<double>(losses.size()) * static_cast<double>(batch);
  return {seconds, count / seconds, losses.front(), mean(losses), 0, 0, skipped_steps};
}

/// Of "1/8" or "0.125".
double fraction(const std::string& text) {
  std::istringstream stream(text);
  double value = 0, divisor = 1;
  char slash = '/';
  stream >> value;
  if (!stream.eof()) stream >> slash >> divisor;
  TORCH_CHECK(!stream.fail() && stream.eof() && slash == '/' && value > 0 && divisor > 0,
              "expected --width to be a number or a fraction, got ", text);
  return value / divisor;
}

/// Trains from the same weights at every level; the repeat's number gives the seed.
Run train(const std::string& level, int64_t batch, int64_t repeat, const Split& data,
          const Arguments& arguments) {
  torch::manual_seed(arguments.integer("--seed") + repeat);
  const torch::Device device = arguments.device();
  const PeakMemory peak(device);
  torch::nn::Sequential net = make_vgg16(fraction(arguments.text("--width")));
  net->to(device);
  const Arm arm = amp_arm(net, make_sgd(*net, kLearningRate, kMomentum), level);
  Run run{level, batch, repeat, {}, 0};
  for (int64_t i = 0; i < arguments.integer("--epochs"); ++i) {
    Epoch epoch = train_epoch(arm, data.train, batch);
    if (i > 0) epoch.first_loss = run.epochs[0].first_loss;
    epoch.train_accuracy = accuracy(arm, data.train, batch);
    epoch.test_accuracy = accuracy(arm, data.test, batch);
    run.epochs.push_back(epoch);
  }
  run.peak_mib = peak.mib(count_sizes(arm, data.train.images.narrow(0, 0, batch)));
  return run;
}

int run(const Arguments& arguments) {
  const torch::Device device = arguments.device();
  torch::manual_seed(arguments.integer("--seed"));
  const Split data = load_images(arguments.words("--data"), arguments.integer("--images"), device);
  std::vector<Run> runs;
  const Words levels = arguments.choices("--levels", "O0 O1 O2 O3 O4 O5");
  for (int64_t repeat = 0; repeat < arguments.integer("--repeats"); ++repeat) {
    for (const std::string& word : arguments.words("--batch")) {
      const int64_t batch = std::stoll(word), images = data.train.labels.size(0);
      TORCH_CHECK(batch >= 1 && batch <= images, "--batch: expected 1 to the ", images,
                  " images, got ", word);
      for (const std::string& level : levels) {
        runs.push_back(train(level, batch, repeat, data, arguments));
      }
    }
  }
  const std::string& out = arguments.text("--out");
  write_csv(runs, out + "/runs.csv");
  return finish("VGG16 by batch size", {caption(device), table(runs, device), memory_label(device)},
                problems(runs, arguments.number("--tolerance")), out);
}

int main(int argc, char** argv) {
  const Presets presets{{"small",
                         {{"--width", "0.0625"},
                          {"--images", "128"},
                          {"--data", "digits"},
                          {"--batch", "32 64 128"},
                          {"--epochs", "3"},
                          {"--repeats", "1"}}},
                        {"original",
                         {{"--width", "1"},
                          {"--images", "50000"},
                          {"--data", "synthetic"},
                          {"--batch", "128 256 512 1024 2048"},
                          {"--epochs", "20"},
                          {"--repeats", "3"}}}};
  return run_experiment([&] {
    return run(parse_command_line(argc, argv, "vgg_sweep_cpp",
                                  {{"--levels", "O0 O3 O1 O2 O5"}, {"--tolerance", "0.02"}},
                                  presets));
  });
}
