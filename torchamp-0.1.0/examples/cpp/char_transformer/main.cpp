// A character-level transformer with the fused AdamW, gradient clipping and a warm-up schedule:
//
//     char_transformer --level O2 --steps 1000 --out steps.csv
//
// Prints a sample of generated text at the end.
#include <torch/nn/functional/loss.h>
#include <torchamp/amp.h>

#include "arguments.h"
#include "net.h"
#include "report.h"
#include "text.h"
#include "warm_up.h"

constexpr int64_t kBatchSize = 16;
constexpr double kLearningRate = 5e-3;
constexpr double kMaxNorm = 1.0;
constexpr int64_t kSampleLength = 200;

using AmpedTransformer = amp::Amped<CharTransformer>;

/// The step reads the model's grads and writes master and model in one pass. This program does not
/// read unscaled master grads, so they are not materialized.
AmpedTransformer initialize(CharTransformer net, torch::optim::Optimizer& adam,
                            const std::string& level) {
  return amp::initialize(net, adam, amp::Options(level).verbosity(0));
}

Step train_step(AmpedTransformer& amped, WarmUpThenCosine& schedule, const Batch& batch) {
  auto& [model, optimizer] = amped;
  const double loss_scale = model.amp()->loss_scaler().loss_scale();
  optimizer.zero_grad();
  const torch::Tensor logits = model(batch.inputs);
  const torch::Tensor loss =
      torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch.targets.flatten());
  amp::scale_loss(loss, optimizer).backward();
  amp::clip_grad_norm_(optimizer, kMaxNorm);
  const bool stepped = optimizer.step();
  if (stepped) schedule.step();
  return {0, loss.item<float>(), loss_scale, !stepped};
}

/// `prompt`, followed by the model's continuation.
std::string write(AmpedTransformer& amped, const Text& text, std::string prompt,
                  torch::Device device) {
  torch::NoGradGuard no_grad;
  for (int64_t i = 0; i < kSampleLength; ++i) {
    const size_t start = prompt.size() - std::min<size_t>(prompt.size(), kContext);
    const torch::Tensor ids = text.encode(prompt.substr(start)).to(device).unsqueeze(0);
    const torch::Tensor next = amped.model(ids).select(0, 0).select(0, -1).softmax(-1);
    prompt += text.decode(next.multinomial(1).item<int64_t>());
  }
  return prompt;
}

void run(const Arguments& arguments) {
  const torch::Device device = arguments.device();
  const int64_t steps = arguments.integer("--steps");
  const Text text(arguments.text("--data"), device);
  torch::manual_seed(arguments.integer("--seed"));
  CharTransformer net(text.alphabet_size());
  net->to(device);
  amp::optim::FusedAdamW adam(net->parameters(), amp::optim::FusedAdamWOptions(kLearningRate));
  AmpedTransformer amped = initialize(net, adam, arguments.text("--level"));
  WarmUpThenCosine schedule(amped.optimizer.wrapped(), /*warm_up=*/steps / 10, steps);
  schedule.step();

  Report report("char_transformer", steps, arguments.text("--out"));
  for (int64_t i = 0; i < steps; ++i) {
    Step step = train_step(amped, schedule, text.sample(kBatchSize, kContext));
    step.index = i;
    report.add(step);
  }
  std::cout << "alphabet " << text.alphabet_size() << "\nskipped_steps " << report.skipped_steps()
            << "\n\n"
            << write(amped, text, "The sea", device) << '\n';
}

int main(int argc, char** argv) {
  return run_example([&] {
    run(Arguments(argc, argv,
                  {{"--level", "O2"},
                   {"--steps", "1000"},
                   {"--seed", "1"},
                   {"--data", EXAMPLES_DATA "/tale.txt"},
                   {"--device", "auto"},
                   {"--out", ""}}));
  });
}
