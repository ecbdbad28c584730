// DDPM: a small UNet with float time steps, and an average of its weights that samples.
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <memory>

#include "run.h"

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kSteps = 1000, kChannels = 8;

class UNetImpl : public nn::Cloneable<UNetImpl> {
 public:
  UNetImpl() { reset(); }

  void reset() override {
    const auto conv = [](int64_t from, int64_t to) {
      return nn::Conv2dOptions(from, to, 3).padding(1);
    };
    time = register_module("time", nn::Linear(kChannels, kChannels));
    stem = register_module("stem", nn::Conv2d(conv(1, kChannels)));
    down = register_module("down", nn::Conv2d(conv(kChannels, kChannels).stride(2)));
    norm = register_module("norm", nn::GroupNorm(2, kChannels));
    up = register_module("up", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 8, 2).stride(2)));
    head = register_module("head", nn::Conv2d(conv(2 * kChannels, 1)));
    const torch::Tensor powers = torch::arange(kChannels / 2) / (kChannels / 2.0);
    frequencies = register_buffer("frequencies", torch::pow(10000.0, -powers));
  }

  torch::Tensor forward(torch::Tensor x, torch::Tensor t) {
    torch::Tensor embedding = time_embedding(t);
#ifdef WITH_TORCHAMP
    embedding = embedding.to(x.scalar_type());
#endif
    const torch::Tensor skip = torch::silu(stem(x));
    x = down(skip) + time(embedding).unsqueeze(-1).unsqueeze(-1);
    x = up(torch::silu(norm(x)));
    return head(torch::cat({x, skip}, 1));
  }

  torch::Tensor time_embedding(const torch::Tensor& t) const {
    const torch::Tensor angles = t.unsqueeze(1) * frequencies;
    return torch::cat({angles.sin(), angles.cos()}, 1);
  }

  nn::Linear time{nullptr};
  nn::Conv2d stem{nullptr}, down{nullptr}, head{nullptr};
  nn::ConvTranspose2d up{nullptr};
  nn::GroupNorm norm{nullptr};
  torch::Tensor frequencies;
};
TORCH_MODULE(UNet);

/// The share of the image that is left at float times.
torch::Tensor alpha_bar(const torch::Tensor& t) {
  return torch::exp(-5 * (t / kSteps).square());
}

torch::Tensor images() {
  const torch::Tensor row = torch::arange(8) - 8 * torch::rand({8, 1, 1, 1});
  return torch::exp(-row.square() / 4).expand({8, 1, 8, 8}) * 2 - 1;
}

#ifndef WITH_TORCHAMP
void update_ema(UNetImpl& ema, const UNetImpl& net, double decay) {
  torch::NoGradGuard no_grad;
  const auto from = net.parameters();
  auto to = ema.parameters();
  for (size_t i = 0; i < to.size(); ++i) to[i].lerp_(from[i], 1 - decay);
}
#endif

void train(const Run& run) {
  UNet net;
  torch::optim::Adam adam(net->parameters(), 1e-2);
#ifdef WITH_TORCHAMP
  auto options = run.options();
  if (run.casts_weights()) options.keep_fp32({"frequencies"});
  auto amped = amp::initialize(net, adam, options);
  auto& [model, optimizer] = amped;
  amp::AveragedModel ema(model, 0.9);
  if (run.resumes()) amp::load(amped, run.file("amp"));
  if (run.resumes()) torch::load(ema.module(), run.file("ema"));
  if (run.resumes()) ema.n_averaged() = run.first();
#else
  UNet& model = net;
  torch::optim::Adam& optimizer = adam;
  auto ema = std::dynamic_pointer_cast<UNetImpl>(net->clone());
  if (run.resumes()) torch::load(net, run.file("net"));
  if (run.resumes()) torch::load(adam, run.file("adam"));
  if (run.resumes()) torch::load(ema, run.file("ema"));
#endif

  for (int64_t i = run.first(); i < Run::kIterations; ++i) {
    if (run.saves_before(i)) {
#ifdef WITH_TORCHAMP
      amp::save(amped, run.file("amp"));
      torch::save(ema.module(), run.file("ema"));
#else
      torch::save(net, run.file("net"));
      torch::save(adam, run.file("adam"));
      torch::save(ema, run.file("ema"));
#endif
    }
    torch::manual_seed(i);
    const torch::Tensor clean = images();
    const torch::Tensor noise = torch::randn_like(clean);
    const torch::Tensor t = torch::randint(1, kSteps, {8}).to(torch::kFloat);
    const torch::Tensor left = alpha_bar(t).view({-1, 1, 1, 1});
    const torch::Tensor noisy = left.sqrt() * clean + (1 - left).sqrt() * noise;
#ifdef WITH_TORCHAMP
    const auto at_t = [&t](UNetImpl& unet, const torch::Tensor& x) { return unet.forward(x, t); };
    const torch::Tensor predicted = model.call(at_t, noisy);
#else
    const torch::Tensor predicted = model->forward(noisy, t);
#endif
    const torch::Tensor loss = run.loss(i, F::mse_loss(predicted, noise));
    optimizer.zero_grad();
#ifdef WITH_TORCHAMP
    amp::scale_loss(loss, optimizer).backward();
    optimizer.step();
    ema.update_parameters(model);
#else
    loss.backward();
    optimizer.step();
    update_ema(*ema, *net, i == 0 ? 0 : 0.9);
#endif
    torch::NoGradGuard no_grad;
    const torch::Tensor of_average = F::mse_loss(ema->forward(noisy, t), noise);
    print(i, {loss, of_average}, net->parameters(), optimizer);
  }
}
