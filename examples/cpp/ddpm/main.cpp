// A diffusion model that learns to draw a ring: gradients are accumulated over micro-batches, and
// an exponential moving average (EMA) of the masters draws the samples.
//
//     ddpm --level O2 --steps 1000 --out steps.csv
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torchamp/amp.h>

#include <cmath>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <string>
#include <vector>

constexpr int64_t kWidth = 64;
constexpr int64_t kNoiseSteps = 40;
constexpr int64_t kMicroBatches = 4;
constexpr double kRadius = 2;

/// Noisy points [n, 2] and the diffusion time of each [n, 1], 0 … 1 → the predicted noise [n, 2].
struct DenoiserImpl : torch::nn::Module {
  torch::nn::Linear fc1{3, kWidth};
  torch::nn::Linear fc2{kWidth, kWidth};
  torch::nn::Linear fc3{kWidth, 2};

  DenoiserImpl() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    register_module("fc3", fc3);
  }

  torch::Tensor forward(const torch::Tensor& points, const torch::Tensor& time) {
    const torch::Tensor x = torch::silu(fc1(torch::cat({points, time}, 1)));
    return fc3(torch::silu(fc2(x)));
  }
};
TORCH_MODULE(Denoiser);

/// Noise is added in kNoiseSteps steps, step t with variance betas[t].
struct Diffusion {
  torch::Tensor betas;
  torch::Tensor kept = (1 - betas).cumprod(0);  ///< of a point's variance after each step
};

/// The denoiser's time input for `t`, int64 [n]: [n, 1].
torch::Tensor time_of(const torch::Tensor& t) {
  return t.to(torch::kFloat).div(kNoiseSteps - 1).unsqueeze(1);
}

/// Of points on the ring, after random steps of the diffusion.
torch::Tensor denoising_loss(const amp::Model<Denoiser>& model, const Diffusion& diffusion) {
  const torch::Tensor angle = torch::rand({64}).mul(2 * M_PI).to(diffusion.kept.device());
  const torch::Tensor points = kRadius * torch::stack({angle.cos(), angle.sin()}, 1);
  const torch::Tensor noise = torch::randn_like(points);
  const torch::Tensor t = torch::randint(kNoiseSteps, {points.size(0)}).to(points.device());
  const torch::Tensor kept = diffusion.kept.index({t}).unsqueeze(1);
  const torch::Tensor noisy = kept.sqrt() * points + (1 - kept).sqrt() * noise;
  return torch::nn::functional::mse_loss(model(noisy, time_of(t)), noise);
}

/// Moves the average by that share to the masters. Float16 weights round away most of a step's
/// change, so an average of the model's own weights would hardly move.
void update_average(Denoiser& average, const amp::Optimizer& optimizer, double share) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> averages = average->parameters();
  const std::vector<torch::Tensor> masters = amp::master_params(optimizer);
  for (size_t i = 0; i < averages.size(); ++i) averages[i].lerp_(masters[i], share);
}

/// Each scale_loss unscales its grads by its own scale and adds them to the masters' grads in
/// float32. The step is skipped if any of them overflowed.
void train(amp::Amped<Denoiser>& amped, Denoiser& average, const Diffusion& diffusion,
           int64_t steps, std::ostream& csv) {
  auto& [model, optimizer] = amped;
  for (int64_t i = 0; i < steps; ++i) {
    const double loss_scale = model.amp()->loss_scaler().loss_scale();
    torch::Tensor mean_loss = torch::zeros({}, diffusion.kept.device());
    optimizer.zero_grad();
    for (int64_t k = 0; k < kMicroBatches; ++k) {
      const torch::Tensor loss = denoising_loss(model, diffusion) / kMicroBatches;
      mean_loss += loss.detach();
      amp::scale_loss scaled_loss(loss, optimizer);
      scaled_loss.backward();
    }
    const bool stepped = optimizer.step();
    if (stepped) update_average(average, optimizer, 0.02);
    csv << i << ',' << mean_loss.item<float>() << ',' << loss_scale << ',' << !stepped << '\n';
  }
}

/// The mean distance from the ring of points that the denoiser generates from noise.
double distance_to_ring(Denoiser& denoiser, const Diffusion& diffusion) {
  const torch::NoGradGuard no_grad;
  const auto& [betas, kept] = diffusion;
  torch::Tensor points = torch::randn({256, 2}, betas.options());
  for (int64_t t = kNoiseSteps - 1; t >= 0; --t) {
    const torch::Tensor times = torch::full({256}, t, betas.options().dtype(torch::kLong));
    const torch::Tensor noise = denoiser->forward(points, time_of(times));
    points = (points - betas[t] / (1 - kept[t]).sqrt() * noise) / (1 - betas[t]).sqrt();
    if (t == 0) break;
    const torch::Tensor variance = betas[t] * (1 - kept[t - 1]) / (1 - kept[t]);
    points += variance.sqrt() * torch::randn_like(points);
  }
  return points.norm(2, 1).sub(kRadius).abs().mean().item<double>();
}

void run(const std::string& level, int64_t steps, torch::Device device, std::ostream& csv) {
  const Diffusion diffusion{torch::linspace(1e-3, 0.2, kNoiseSteps).to(device)};
  Denoiser net, average;
  net->to(device);
  average->to(device);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(5e-3));
  auto amped = amp::initialize(net, adam, level);
  update_average(average, amped.optimizer, 1);
  std::cout << "distance_before " << distance_to_ring(average, diffusion) << '\n';
  train(amped, average, diffusion, steps, csv);
  std::cout << "distance_after " << distance_to_ring(average, diffusion) << '\n';
}

int main(int argc, char** argv) try {
  std::map<std::string, std::string> options{
      {"--level", "O2"},
      {"--steps", "1000"},
      {"--device", torch::cuda::is_available() ? "cuda" : "cpu"},
      {"--out", "/dev/null"}};
  for (int i = 1; i < argc; i += 2) {
    TORCH_CHECK(options.count(argv[i]) == 1 && i + 1 < argc,
                "expected an option and its value, got ", argv[i]);
    options[argv[i]] = argv[i + 1];
  }
  std::ofstream csv(options["--out"]);
  TORCH_CHECK(csv, "expected --out to name a writable file, got ", options["--out"]);
  csv << std::setprecision(9) << "step,loss,loss_scale,skipped\n";
  torch::manual_seed(1);
  run(options["--level"], std::stoll(options["--steps"]), options["--device"], csv);
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
}
