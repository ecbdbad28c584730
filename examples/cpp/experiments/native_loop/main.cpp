// autocast, GradScaler and torchamp, with the model called in this thread or in several.
//
//     native_loop --style all --data-parallel 2
//
// autocast casts in the thread that entered it. A model that other threads call stays in float32.
// torchamp's O1 casts in any thread. Prints the dtype inside the model's forward. Writes
// native_loop.csv and summary.md. Exits with status 1 if a dtype is not the expected one, or if the
// losses of the styles differ by more than 2 %. examples/python/native_loop.py is the same
// experiment in Python.
#include "arms.h"
#include "lab.h"
#include "net.h"
#include "summary.h"
#include "threads.h"

constexpr double kLearningRate = 0.05;
constexpr double kMomentum = 0.875;
const std::string kStyles = "fp32 autocast autocast+scaler torchamp";

Arm make_arm(const std::string& style, const Net& net) {
  const OptimizerPtr sgd = make_sgd(*net, kLearningRate, kMomentum);
  if (style == "fp32") return float32_arm(net, sgd);
  if (style == "autocast") return autocast_arm(net, sgd);
  if (style == "autocast+scaler") return native_arm(net, sgd);
  return amp_arm(net, sgd, "O1");
}

/// The memory of training on batches like these, where the model is called. autocast is entered in
/// this thread alone.
Sizes count_sizes_in(const Arm& arm, const Threads& threads, const torch::Tensor& images) {
  std::optional<amp::autocast> casts;
  arm.enter(casts, images.device());
  return threads.run([&] { return arm.sizes(images); });
}

/// Trains a style from the same weights, on the same batches.
Row train(const std::string& style, const Digits& digits, const Arguments& arguments) {
  torch::manual_seed(arguments.integer("--seed"));
  Net net(arguments.integer("--width"));
  net->to(arguments.device());
  const Arm arm = make_arm(style, net);
  const Threads threads(arguments.integer("--data-parallel"));
  const torch::Tensor rows = torch::randint(
      digits.labels.size(0), {arguments.integer("--steps"), arguments.integer("--batch")});

  Dtypes outputs;
  const auto call = [&](const auto& model, const torch::Tensor& images) {
    const torch::Tensor output = threads.forward(model, images);
    outputs.record(output);
    return output;
  };
  Row row{style, arguments.integer("--data-parallel"), "", "", NAN, NAN, 0, {}};
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const StepResult step = train_step(arm, take(digits, rows[i]), call);
    if (i == 0) row.first_loss = step.loss;
    row.last_loss = step.loss;
    row.skipped_steps += step.skipped;
  }
  row.inside = net->inside.text();
  row.output = outputs.text();
  row.sizes = count_sizes_in(arm, threads, take(digits, rows[0]).images);
  return row;
}

int run(const Arguments& arguments) {
  const torch::Device device = arguments.device();
  const Digits digits = load_digits(EXAMPLES_DATA "/digits.csv", device).train;
  std::vector<Row> rows;
  const Words chosen = arguments.choices("--style", kStyles + " all");
  for (const std::string& style : chosen == Words{"all"} ? split(kStyles) : chosen) {
    rows.push_back(train(style, digits, arguments));
  }
  const std::string& out = arguments.text("--out");
  write_csv(rows, out + "/native_loop.csv");
  return finish("The dtype inside a model that is called " + where(rows[0].threads),
                {caption(device), table(rows), memory_label(torch::kCPU)},
                problems(rows, arguments.number("--tolerance")), out);
}

int main(int argc, char** argv) {
  const Presets presets{
      {"small", {{"--steps", "50"}, {"--width", "128"}, {"--batch", "1024"}}},
      {"original", {{"--steps", "500"}, {"--width", "4096"}, {"--batch", "16384"}}}};
  return run_experiment([&] {
    return run(parse_command_line(
        argc, argv, "native_loop_cpp",
        {{"--style", "all"}, {"--data-parallel", "2"}, {"--tolerance", "0.02"}}, presets));
  });
}
