// A diffusion model that learns to draw a ring: gradients are accumulated over micro-batches, and
// an exponential moving average (EMA) of the masters draws the samples.
//
//     ddpm --level O2 --steps 1000 --micro-batches 4 --out steps.csv
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torchamp/amp.h>

#include "arguments.h"
#include "diffusion.h"
#include "ema.h"
#include "net.h"
#include "report.h"

constexpr int64_t kMicroBatchSize = 64;
constexpr double kLearningRate = 5e-3;
constexpr double kDecay = 0.98;
constexpr double kRadius = 2;

using AmpedDenoiser = amp::Amped<Denoiser>;

/// Points on a circle.
torch::Tensor ring(int64_t count, torch::Device device) {
  const torch::Tensor angle = torch::rand({count}).mul(2 * M_PI).to(device);
  return kRadius * torch::stack({angle.cos(), angle.sin()}, 1);
}

torch::Tensor denoising_loss(AmpedDenoiser& amped, const Diffusion& diffusion,
                             const torch::Tensor& points) {
  const torch::Tensor noise = torch::randn_like(points);
  const torch::Tensor t = torch::randint(kNoiseSteps, {points.size(0)}).to(points.device());
  const torch::Tensor noisy = diffusion.add_noise(points, noise, t);
  return torch::nn::functional::mse_loss(amped.model(noisy, Diffusion::progress(t)), noise);
}

/// Each scale_loss unscales its grads by its own scale and adds them to the masters' grads in
/// float32. The step is skipped if any of them overflowed.
Step train_step(AmpedDenoiser& amped, const Diffusion& diffusion, int64_t micro_batches,
                torch::Device device) {
  auto& [model, optimizer] = amped;
  const double loss_scale = model.amp()->loss_scaler().loss_scale();
  torch::Tensor mean_loss = torch::zeros({}, device);
  optimizer.zero_grad();
  for (int64_t i = 0; i < micro_batches; ++i) {
    const torch::Tensor loss =
        denoising_loss(amped, diffusion, ring(kMicroBatchSize, device)) / micro_batches;
    mean_loss += loss.detach();
    amp::scale_loss scaled_loss(loss, optimizer);
    scaled_loss.backward();
  }
  const bool stepped = optimizer.step();
  return {0, mean_loss.item<float>(), loss_scale, !stepped};
}

/// Mean distance of sampled points from the ring.
template <class D>
double distance_to_ring(const Diffusion& diffusion, D& denoiser) {
  return diffusion.sample(denoiser, 256)
      .norm(2, 1)
      .sub(kRadius)
      .abs()
      .mean()
      .template item<double>();
}

void run(const Arguments& arguments) {
  const torch::Device device = arguments.device();
  const int64_t steps = arguments.integer("--steps");
  torch::manual_seed(arguments.integer("--seed"));
  const Diffusion diffusion(device);
  Denoiser net, average;
  net->to(device);
  average->to(device);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(kLearningRate));
  AmpedDenoiser amped =
      amp::initialize(net, adam, amp::Options(arguments.text("--level")).verbosity(0));
  Ema ema(amped.optimizer, kDecay);

  ema.copy_to(*average);
  std::cout << "distance_before " << distance_to_ring(diffusion, average) << '\n';
  Report report("ddpm", steps, arguments.text("--out"));
  for (int64_t i = 0; i < steps; ++i) {
    Step step = train_step(amped, diffusion, arguments.integer("--micro-batches"), device);
    step.index = i;
    report.add(step);
    if (!step.skipped) ema.update(amped.optimizer);
  }
  ema.copy_to(*average);
  std::cout << "distance_after " << distance_to_ring(diffusion, average) << "\nskipped_steps "
            << report.skipped_steps() << '\n';
}

int main(int argc, char** argv) {
  return run_example([&] {
    run(Arguments(argc, argv,
                  {{"--level", "O2"},
                   {"--steps", "1000"},
                   {"--micro-batches", "4"},
                   {"--seed", "1"},
                   {"--device", "auto"},
                   {"--out", ""}}));
  });
}
