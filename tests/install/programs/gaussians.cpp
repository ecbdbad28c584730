// Gaussian splatting: parameters without layers, each with its learning rate, and images of them.
#include <torch/nn/functional/loss.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <memory>

#include "run.h"

namespace F = torch::nn::functional;

#ifdef WITH_TORCHAMP
class GaussianModel : public torch::nn::Module {
#else
class GaussianModel {
#endif
 public:
  explicit GaussianModel(int64_t points) {
    positions_ = trained("positions", 2 * torch::rand({points, 2}) - 1);
    scales_ = trained("scales", torch::full({points, 2}, -1.5));
    rotations_ = trained("rotations", torch::zeros({points}));
    colors_ = trained("colors", torch::rand({points, 3}));
    opacities_ = trained("opacities", torch::zeros({points}));
  }

  const torch::Tensor& get_positions() const {
    return positions_;
  }
  const torch::Tensor& get_colors() const {
    return colors_;
  }
  torch::Tensor get_opacities() const {
    return torch::sigmoid(opacities_);
  }
  /// Matrices that take offsets to axes of the Gaussians, in their standard deviations.
  torch::Tensor get_whitening() const {
    const torch::Tensor c = torch::cos(rotations_), s = torch::sin(rotations_);
    const torch::Tensor rows = torch::stack({c, s, -s, c}, 1).view({-1, 2, 2});
    return rows * torch::exp(-scales_).unsqueeze(2);
  }
  std::vector<torch::Tensor> get_all() const {
    return {positions_, scales_, rotations_, colors_, opacities_};
  }

  std::unique_ptr<torch::optim::Adam> training_setup() const {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    const std::vector<double> rates = {1e-2, 5e-3, 1e-3, 2.5e-2, 5e-2};
    for (size_t i = 0; i < rates.size(); ++i) {
      groups.emplace_back(std::vector<torch::Tensor>{get_all()[i]},
                          std::make_unique<torch::optim::AdamOptions>(rates[i]));
    }
    return std::make_unique<torch::optim::Adam>(groups, torch::optim::AdamOptions(0.0).eps(1e-15));
  }

 private:
  torch::Tensor trained(const char* name, const torch::Tensor& values) {
#ifdef WITH_TORCHAMP
    return register_parameter(name, values);
#else
    (void)name;
    return values.clone().requires_grad_(true);
#endif
  }

  torch::Tensor positions_, scales_, rotations_, colors_, opacities_;
};

/// The colors of pixels, [pixels, 3], at their places, [pixels, 2].
torch::Tensor render(const GaussianModel& model, const torch::Tensor& pixels) {
  const torch::Tensor offsets = pixels.unsqueeze(0) - model.get_positions().unsqueeze(1);
  const torch::Tensor whitened = torch::matmul(offsets, model.get_whitening().transpose(1, 2));
  const torch::Tensor density = torch::exp(-0.5 * whitened.pow(2).sum(2));
  const torch::Tensor alpha = (density * model.get_opacities().unsqueeze(1)).clamp_max(0.99);
  const torch::Tensor through = torch::cumprod(1 - alpha, 0);
  const torch::Tensor first = torch::ones_like(through.slice(0, 0, 1));
  const torch::Tensor before = torch::cat({first, through.slice(0, 0, -1)});
  return torch::matmul((alpha * before).t(), model.get_colors());
}

/// Places of size² pixels.
torch::Tensor pixels_of(int64_t size) {
  const torch::Tensor line = torch::linspace(-1, 1, size);
  const auto grid = torch::meshgrid({line, line}, "ij");
  return torch::stack({grid[0].flatten(), grid[1].flatten()}, 1);
}

torch::Tensor picture(const torch::Tensor& pixels) {
  const torch::Tensor disk = torch::exp(-4 * pixels.square().sum(1));
  return torch::stack({disk, 1 - disk, disk.square()}, 1);
}

void train(const Run& run) {
  GaussianModel model(24);
  const auto adam = model.training_setup();
#ifdef WITH_TORCHAMP
  auto amped = amp::initialize(model, *adam, run.options());
  auto& optimizer = amped.optimizer;
  if (run.resumes()) amp::load(amped, run.file("amp"));
#else
  auto& optimizer = *adam;
  if (run.resumes()) {
    std::vector<torch::Tensor> saved;
    torch::load(saved, run.file("gaussians"));
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < saved.size(); ++i) model.get_all()[i].copy_(saved[i]);
    torch::load(*adam, run.file("adam"));
  }
#endif

  for (int64_t i = run.first(); i < Run::kIterations; ++i) {
    if (run.saves_before(i)) {
#ifdef WITH_TORCHAMP
      amp::save(amped, run.file("amp"));
#else
      torch::save(model.get_all(), run.file("gaussians"));
      torch::save(*adam, run.file("adam"));
#endif
    }
    torch::manual_seed(i);
    const torch::Tensor pixels =
        pixels_of(16).index_select(0, torch::randperm(256).slice(0, 0, 64));
#ifdef WITH_TORCHAMP
    const torch::Tensor image = amped.model.call(render, pixels);
#else
    const torch::Tensor image = render(model, pixels);
#endif
    const torch::Tensor loss = run.loss(i, F::l1_loss(image, picture(pixels)));
    optimizer.zero_grad();
#ifdef WITH_TORCHAMP
    amp::scale_loss(loss, optimizer).backward();
#else
    loss.backward();
#endif
    optimizer.step();
    print(i, {loss}, model.get_all(), optimizer);
  }
}
