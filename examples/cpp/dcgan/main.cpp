// A DCGAN that learns to write digits: two models, two optimizers, and three losses, each with
// its own loss scale.
//
//     dcgan --level O2 --steps 400 --out folder       # folder/real.csv, fake.csv, generator.csv
#include <torch/cuda.h>
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torchamp/amp.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <string>
#include <vector>

constexpr int64_t kLatent = 32;

/// [n, kLatent, 1, 1] → images [n, 1, 8, 8], 0 … 1
struct GeneratorImpl : torch::nn::Module {
  torch::nn::ConvTranspose2d conv1{torch::nn::ConvTranspose2dOptions(kLatent, 32, 4).bias(false)};
  torch::nn::BatchNorm2d bn1{32};
  torch::nn::ConvTranspose2d conv2{
      torch::nn::ConvTranspose2dOptions(32, 1, 4).stride(2).padding(1)};

  GeneratorImpl() {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
  }

  torch::Tensor forward(const torch::Tensor& latent) {
    return torch::sigmoid(conv2(torch::relu(bn1(conv1(latent)))));
  }
};
TORCH_MODULE(Generator);

/// images [n, 1, 8, 8] → logits [n], high where the image looks real
struct DiscriminatorImpl : torch::nn::Module {
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 16, 4).stride(2).padding(1)};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(16, 32, 4)};
  torch::nn::Linear fc{32, 1};

  DiscriminatorImpl() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("fc", fc);
  }

  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor features = torch::leaky_relu(conv1(images), 0.2);
    return fc(torch::leaky_relu(conv2(features), 0.2).flatten(1)).flatten();
  }
};
TORCH_MODULE(Discriminator);

/// The losses, by loss_id.
enum Loss : int64_t { kReal, kFake, kGenerator, kNumLosses };

struct Step {
  float loss;
  double loss_scale;
  bool overflowed;
};

using AmpedGan = amp::AmpedMany<Generator, Discriminator>;

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
  return {loss.item<float>(), loss_scale, scaler.found_inf().item<float>() != 0};
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

void train(AmpedGan& gan, const torch::Tensor& images, int64_t count,
           std::vector<std::ofstream>& files) {
  for (int64_t i = 0; i < count; ++i) {
    const torch::Tensor rows = torch::randint(images.size(0), {32}).to(images.device());
    const auto steps = train_step(gan, images.index_select(0, rows));
    for (size_t k = 0; k < files.size(); ++k) {
      const auto& [loss, loss_scale, overflowed] = steps[k];
      files[k] << i << ',' << loss << ',' << loss_scale << ',' << overflowed << '\n';
    }
  }
}

/// Distance of the mean generated image from the mean real one: root mean square over pixels.
double distance(AmpedGan& gan, const torch::Tensor& real) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor fake = std::get<0>(gan.models)(random_latent(512, real.device()));
  return (fake.mean(0) - real.mean(0)).square().mean().sqrt().item<double>();
}

/// The images [n, 1, 8, 8] of a file whose rows are of 64 pixels, 0 … 16, and a label.
torch::Tensor load_images(const std::string& path) {
  std::ifstream file(path);
  TORCH_CHECK(file, "expected --data to name a readable file, got ", path);
  std::vector<float> values;
  for (float value = 0; file >> value; file.ignore(1)) values.push_back(value);
  return torch::tensor(values).reshape({-1, 65}).narrow(1, 0, 64).reshape({-1, 1, 8, 8}) / 16;
}

/// A CSV file a loss; none if the folder's name is empty.
std::vector<std::ofstream> open_files(const std::string& folder) {
  std::vector<std::ofstream> files;
  if (folder.empty()) return files;
  std::filesystem::create_directories(folder);
  for (const char* name : {"/real.csv", "/fake.csv", "/generator.csv"}) {
    files.emplace_back(folder + name) << std::setprecision(9) << "step,loss,loss_scale,skipped\n";
  }
  return files;
}

void run(const std::string& level, int64_t steps, const torch::Tensor& images,
         std::vector<std::ofstream> files) {
  Generator generator;
  Discriminator discriminator;
  generator->to(images.device());
  discriminator->to(images.device());
  const auto options = torch::optim::AdamOptions(2e-3).betas({0.5, 0.999});
  torch::optim::Adam generator_adam(generator->parameters(), options);
  torch::optim::Adam discriminator_adam(discriminator->parameters(), options);
  AmpedGan gan = amp::initialize(std::make_tuple(generator, discriminator),
                                 {generator_adam, discriminator_adam},
                                 amp::Options(level).num_losses(kNumLosses));
  std::cout << "distance_before " << distance(gan, images) << '\n';
  train(gan, images, steps, files);
  std::cout << "distance_after " << distance(gan, images) << '\n';
}

int main(int argc, char** argv) try {
  std::map<std::string, std::string> options{
      {"--level", "O2"},
      {"--steps", "400"},
      {"--data", EXAMPLES_DATA "/digits.csv"},
      {"--device", torch::cuda::is_available() ? "cuda" : "cpu"},
      {"--out", ""}};
  for (int i = 1; i < argc; i += 2) {
    TORCH_CHECK(options.count(argv[i]) == 1 && i + 1 < argc,
                "expected an option and its value, got ", argv[i]);
    options[argv[i]] = argv[i + 1];
  }
  torch::manual_seed(1);
  run(options["--level"], std::stoll(options["--steps"]),
      load_images(options["--data"]).to(options["--device"]), open_files(options["--out"]));
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << '\n';
  return 1;
}
