// A DCGAN that learns to write digits: two models, two optimizers, and three losses, each with
// its own loss scale.
//
//     dcgan --level O2 --steps 400 --out folder       # folder/real.csv, fake.csv, generator.csv
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torchamp/amp.h>

#include <filesystem>

#include "arguments.h"
#include "digits.h"
#include "net.h"
#include "report.h"

constexpr int64_t kBatchSize = 32;

/// The losses, by loss_id.
enum Loss : int64_t { kReal, kFake, kGenerator, kNumLosses };

using AmpedGan = amp::AmpedMany<Generator, Discriminator>;

AmpedGan initialize(Generator generator, Discriminator discriminator,
                    const amp::OptimizerRefs& optimizers, const std::string& level) {
  const amp::Options options = amp::Options(level).num_losses(kNumLosses).verbosity(0);
  return amp::initialize(std::make_tuple(generator, discriminator), optimizers, options);
}

/// Binary cross entropy of the logits with all images labelled real (1) or fake (0).
torch::Tensor loss_against(const torch::Tensor& logits, double is_real) {
  return torch::nn::functional::binary_cross_entropy_with_logits(logits,
                                                                 torch::full_like(logits, is_real));
}

/// One of the three backwards; the caller steps later.
Step backward(const torch::Tensor& loss, const amp::Optimizer& optimizer, Loss loss_id) {
  const amp::LossScaler& scaler = optimizer.amp()->loss_scaler(loss_id);
  const double loss_scale = scaler.loss_scale();
  amp::scale_loss(loss, optimizer, {/*loss_id=*/loss_id}).backward();
  return {0, loss.item<float>(), loss_scale, scaler.found_inf().item<float>() != 0};
}

torch::Tensor random_latent(int64_t count, torch::Device device) {
  return torch::randn({count, kLatent, 1, 1}, device);
}

/// Trains the discriminator to tell `real` from generated images, then the generator to produce
/// images that the discriminator classifies as real.
std::array<Step, kNumLosses> train_step(AmpedGan& gan, const torch::Tensor& real) {
  auto& [generator, discriminator] = gan.models;
  amp::Optimizer& generator_optimizer = gan.optimizers[0];
  amp::Optimizer& discriminator_optimizer = gan.optimizers[1];
  const torch::Tensor fake = generator(random_latent(real.size(0), real.device()));
  std::array<Step, kNumLosses> steps;

  discriminator_optimizer.zero_grad();
  steps[kReal] = backward(loss_against(discriminator(real), 1), discriminator_optimizer, kReal);
  steps[kFake] =
      backward(loss_against(discriminator(fake.detach()), 0), discriminator_optimizer, kFake);
  discriminator_optimizer.step();  // skipped if either overflowed

  generator_optimizer.zero_grad();
  for (torch::Tensor& param : discriminator->parameters()) param.requires_grad_(false);
  steps[kGenerator] =
      backward(loss_against(discriminator(fake), 1), generator_optimizer, kGenerator);
  for (torch::Tensor& param : discriminator->parameters()) param.requires_grad_(true);
  generator_optimizer.step();
  return steps;
}

/// Distance of the mean generated image from the mean real one: root mean square over pixels.
double distance(AmpedGan& gan, const torch::Tensor& real) {
  torch::NoGradGuard no_grad;
  const torch::Tensor fake = std::get<0>(gan.models)(random_latent(512, real.device()));
  return (fake.mean(0) - real.mean(0)).square().mean().sqrt().item<double>();
}

/// The three reports and one progress bar.
class Reports {
 public:
  Reports(int64_t steps, const std::string& folder) : bar_("dcgan", steps) {
    if (!folder.empty()) std::filesystem::create_directories(folder);
    for (const char* name : {"real", "fake", "generator"}) {
      logs_.emplace_back(folder.empty() ? "" : folder + "/" + name + ".csv");
    }
  }

  void add(int64_t index, std::array<Step, kNumLosses> steps) {
    for (size_t i = 0; i < steps.size(); ++i) {
      steps[i].index = index;
      logs_[i].write(steps[i]);
    }
    bar_.show(steps[kGenerator]);
  }

 private:
  std::vector<StepLog> logs_;
  ProgressBar bar_;
};

void run(const Arguments& arguments) {
  const torch::Device device = arguments.device();
  const int64_t steps = arguments.integer("--steps");
  const torch::Tensor real = load_digits(EXAMPLES_DATA "/digits.csv", device).train.images;
  torch::manual_seed(arguments.integer("--seed"));
  Generator generator;
  Discriminator discriminator;
  generator->to(device);
  discriminator->to(device);
  const auto options = torch::optim::AdamOptions(arguments.number("--lr")).betas({0.5, 0.999});
  torch::optim::Adam generator_adam(generator->parameters(), options);
  torch::optim::Adam discriminator_adam(discriminator->parameters(), options);
  AmpedGan gan = initialize(generator, discriminator, {generator_adam, discriminator_adam},
                            arguments.text("--level"));

  const double before = distance(gan, real);
  Reports reports(steps, arguments.text("--out"));
  for (int64_t i = 0; i < steps; ++i) {
    const torch::Tensor rows = torch::randint(real.size(0), {kBatchSize}).to(device);
    reports.add(i, train_step(gan, real.index_select(0, rows)));
  }
  std::cout << "distance_before " << before << "\ndistance_after " << distance(gan, real) << '\n';
}

int main(int argc, char** argv) {
  return run_example([&] {
    run(Arguments(argc, argv,
                  {{"--level", "O2"},
                   {"--steps", "400"},
                   {"--lr", "0.002"},
                   {"--seed", "1"},
                   {"--device", "auto"},
                   {"--out", ""}}));
  });
}
