// SRGAN: generator and discriminator held by value, each with its optimizer, and the features of a
// fixed network as content loss.
#include <torch/nn/functional/loss.h>
#include <torch/nn/functional/pooling.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pixelshuffle.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include "run.h"

namespace nn = torch::nn;
namespace F = torch::nn::functional;

nn::Conv2dOptions conv(int64_t from, int64_t to) {
  return nn::Conv2dOptions(from, to, 3).padding(1);
}

struct Generator : nn::Module {
  Generator() {
    register_module("head", head);
    register_module("block", block);
    register_module("tail", tail);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = head->forward(x);
    return torch::tanh(tail->forward(x + block->forward(x)));
  }
  nn::Sequential head{nn::Conv2d(conv(1, 8)), nn::PReLU()};
  nn::Sequential block{nn::Conv2d(conv(8, 8)), nn::BatchNorm2d(8), nn::PReLU(),
                       nn::Conv2d(conv(8, 8)), nn::BatchNorm2d(8)};
  nn::Sequential tail{nn::Conv2d(conv(8, 4)), nn::PixelShuffle(2)};
};

struct Discriminator : nn::Module {
  Discriminator() {
    register_module("features", features);
    register_module("classifier", classifier);
  }
  torch::Tensor forward(torch::Tensor x) {
    return classifier->forward(features->forward(x).mean({2, 3}));
  }
  nn::Sequential features{nn::Conv2d(conv(1, 8).stride(2)), nn::LeakyReLU(),
                          nn::Conv2d(conv(8, 8).stride(2)), nn::BatchNorm2d(8), nn::LeakyReLU()};
  nn::Linear classifier{8, 1};
};

/// In place of a trained VGG.
struct Features : nn::Module {
  Features() {
    register_module("layers", layers);
    eval();
    for (torch::Tensor& parameter : parameters()) parameter.requires_grad_(false);
  }
  torch::Tensor forward(torch::Tensor x) { return layers->forward(x); }
  nn::Sequential layers{nn::Conv2d(conv(1, 8)), nn::ReLU(), nn::Conv2d(conv(8, 8))};
};

template <class Saved>
void save(const Saved& saved, const std::string& file) {
  torch::serialize::OutputArchive archive;
  saved.save(archive);
  archive.save_to(file);
}

template <class Loaded>
void load(Loaded& loaded, const std::string& file) {
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  loaded.load(archive);
}

torch::Tensor images() {
  const torch::Tensor row = torch::arange(16) - 16 * torch::rand({8, 1, 1, 1});
  return torch::exp(-row.square() / 4).expand({8, 1, 16, 16});
}

void train(const Run& run) {
  Generator generator_net;
  Discriminator discriminator_net;
  Features content_net;
  torch::optim::Adam generator_adam(generator_net.parameters(), 1e-2);
  torch::optim::Adam discriminator_adam(discriminator_net.parameters(), 1e-3);
#ifdef WITH_TORCHAMP
  auto amped_generator = amp::initialize(generator_net, generator_adam, run.options());
  auto amped_discriminator = amp::initialize(discriminator_net, discriminator_adam, run.options());
  auto content = amp::initialize(content_net, run.options());
  auto& [generator, generator_optimizer] = amped_generator;
  auto& [discriminator, discriminator_optimizer] = amped_discriminator;
  if (run.resumes()) amp::load(amped_generator, run.file("generator"));
  if (run.resumes()) amp::load(amped_discriminator, run.file("discriminator"));
#else
  auto& generator = generator_net;
  auto& discriminator = discriminator_net;
  auto& content = content_net;
  auto &generator_optimizer = generator_adam, &discriminator_optimizer = discriminator_adam;
  if (run.resumes()) load(generator, run.file("generator"));
  if (run.resumes()) load(discriminator, run.file("discriminator"));
  if (run.resumes()) torch::load(generator_adam, run.file("generator_adam"));
  if (run.resumes()) torch::load(discriminator_adam, run.file("discriminator_adam"));
#endif

  for (int64_t i = run.first(); i < Run::kIterations; ++i) {
    if (run.saves_before(i)) {
#ifdef WITH_TORCHAMP
      amp::save(amped_generator, run.file("generator"));
      amp::save(amped_discriminator, run.file("discriminator"));
#else
      save(generator, run.file("generator"));
      save(discriminator, run.file("discriminator"));
      torch::save(generator_adam, run.file("generator_adam"));
      torch::save(discriminator_adam, run.file("discriminator_adam"));
#endif
    }
    torch::manual_seed(i);
    const torch::Tensor sharp = images();
    const torch::Tensor fake = generator.forward(F::avg_pool2d(sharp, F::AvgPool2dFuncOptions(2)));

    const torch::Tensor for_real = discriminator.forward(sharp);
    const torch::Tensor for_fake = discriminator.forward(fake.detach());
    const torch::Tensor one = torch::ones({8, 1}), zero = torch::zeros({8, 1});
    const torch::Tensor discriminator_loss =
        run.loss(i, F::binary_cross_entropy_with_logits(for_real, one) +
                        F::binary_cross_entropy_with_logits(for_fake, zero));
    discriminator_optimizer.zero_grad();
#ifdef WITH_TORCHAMP
    amp::scale_loss(discriminator_loss, discriminator_optimizer).backward();
#else
    discriminator_loss.backward();
#endif
    discriminator_optimizer.step();

    const torch::Tensor adversarial =
        F::binary_cross_entropy_with_logits(discriminator.forward(fake), one);
    const torch::Tensor of_content = F::mse_loss(content.forward(fake), content.forward(sharp));
    const torch::Tensor generator_loss =
        run.loss(i, F::mse_loss(fake, sharp) + of_content + 1e-3 * adversarial);
    generator_optimizer.zero_grad();
#ifdef WITH_TORCHAMP
    amp::scale_loss(generator_loss, generator_optimizer).backward();
#else
    generator_loss.backward();
#endif
    generator_optimizer.step();

    std::vector<torch::Tensor> weights = generator_net.parameters();
    for (const torch::Tensor& each : discriminator_net.parameters()) weights.push_back(each);
    print(i, {discriminator_loss, generator_loss}, weights, discriminator_optimizer,
          generator_optimizer);
  }
}
