// autocast with a GradScaler beside torchamp's opt levels, on the same network.
//
//     compare --arms fp32 native torchamp-O1 torchamp-O2 torchamp-O5 --repeats 3
//
// Writes compare.csv and summary.md. Exits with status 1 if the losses of the GradScaler's loop and
// of torchamp at O1 differ by more than 1e-2 in an epoch. examples/python/compare.py is the same
// experiment in Python, where torch.amp and apex's loop are arms, too.
#include "arms.h"
#include "lab.h"
#include "net.h"
#include "summary.h"

constexpr int64_t kBatchSize = 64;
constexpr double kLearningRate = 0.05;
constexpr double kMomentum = 0.875;
const std::string kArms = "fp32 native torchamp-O1 torchamp-O2 torchamp-O5";

Arm make_arm(const std::string& name, torch::Device device) {
  Net net;
  net->to(device);
  const OptimizerPtr sgd = make_sgd(*net, kLearningRate, kMomentum);
  if (name == "fp32") return float32_arm(net, sgd);
  if (name == "native") return native_arm(net, sgd);
  return amp_arm(net, sgd, name.substr(name.size() - 2));
}

Epoch train_epoch(const Arm& arm, const Digits& digits, std::vector<double>& milliseconds) {
  const torch::Device device = digits.images.device();
  Epoch epoch;
  std::vector<double> losses, times;
  for (const auto& rows : torch::randperm(digits.labels.size(0)).split(kBatchSize)) {
    const double start = seconds_now(device);
    const StepResult step = train_step(arm, take(digits, rows));
    times.push_back(1e3 * (seconds_now(device) - start));
    losses.push_back(step.loss);
    epoch.skipped_steps += step.skipped;
  }
  epoch.loss = mean(losses);
  epoch.quartiles = {quantile(times, 0.25), median(times), quantile(times, 0.75)};
  milliseconds.insert(milliseconds.end(), times.begin(), times.end());
  return epoch;
}

/// Trains an arm; the repeat's number gives the seed, for weights and batches.
Run train(const std::string& name, int64_t repeat, const Split& digits,
          const Arguments& arguments) {
  torch::manual_seed(arguments.integer("--seed") + repeat);
  const Arm arm = make_arm(name, arguments.device());
  Run run{name, repeat, {}, {}, {}};
  for (int64_t i = 0; i < arguments.integer("--epochs"); ++i) {
    run.epochs.push_back(train_epoch(arm, digits.train, run.milliseconds));
    run.epochs.back().test_accuracy = accuracy(arm, digits.test, digits.test.labels.size(0));
  }
  const Sizes sizes = count_sizes(arm, digits.train.images.narrow(0, 0, kBatchSize));
  int64_t parameters = 0;
  for (const auto& param : arm.module->parameters()) parameters += param.numel();
  for (const int64_t size : sizes) {
    run.bytes_per_parameter.push_back(static_cast<double>(size) / static_cast<double>(parameters));
  }
  return run;
}

int run(const Arguments& arguments) {
  const torch::Device device = arguments.device();
  const Split digits = load_digits(EXAMPLES_DATA "/digits.csv", device);
  const Words names = arguments.choices("--arms", kArms);
  std::vector<Run> runs;
  for (int64_t repeat = 0; repeat < arguments.integer("--repeats"); ++repeat) {
    for (const auto& name : names) runs.push_back(train(name, repeat, digits, arguments));
  }
  const std::string& out = arguments.text("--out");
  write_csv(runs, out + "/compare.csv");
  return finish("GradScaler and torchamp",
                {caption(device), table(runs, names, device), bytes_table(runs, names),
                 memory_label(torch::kCPU)},
                disagreements(runs, arguments.number("--tolerance")), out);
}

int main(int argc, char** argv) {
  const Presets presets{{"small", {{"--epochs", "5"}, {"--repeats", "3"}}},
                        {"original", {{"--epochs", "30"}, {"--repeats", "5"}}}};
  return run_experiment([&] {
    return run(parse_command_line(argc, argv, "compare_cpp",
                                  {{"--arms", kArms}, {"--tolerance", "1e-2"}}, presets));
  });
}
