// An autoencoder that trains itself: the module has its optimizer, and what initialize made of
// both.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include "run.h"

namespace F = torch::nn::functional;

class Autoencoder : public torch::nn::Module {
 public:
  explicit Autoencoder(const Run& run);

  torch::Tensor forward(const torch::Tensor& x) { return decoder_(torch::relu(encoder_(x))); }
  void learn(int64_t iteration);
  void write() const;
  void read();

 private:
  const Run& run_;
  torch::nn::Linear encoder_ = register_module("encoder", torch::nn::Linear(16, 8));
  torch::nn::Linear decoder_ = register_module("decoder", torch::nn::Linear(8, 16));
  torch::optim::Adam adam_{parameters(), 1e-2};
#ifdef WITH_TORCHAMP
  amp::Amped<std::shared_ptr<Autoencoder>> amped_;
#endif
};

#ifdef WITH_TORCHAMP
Autoencoder::Autoencoder(const Run& run)
    : run_(run), amped_(amp::initialize(*this, adam_, run.options())) {}
#else
Autoencoder::Autoencoder(const Run& run) : run_(run) {}
#endif

void Autoencoder::learn(int64_t iteration) {
#ifdef WITH_TORCHAMP
  auto& [self, optimizer] = amped_;
#else
  auto& self = *this;
  auto& optimizer = adam_;
#endif
  const torch::Tensor codes = torch::randn({32, 4}).round();
  const torch::Tensor x = codes.repeat({1, 4}) / 2;
  const torch::Tensor loss = run_.loss(iteration, F::mse_loss(self.forward(x), x));
  optimizer.zero_grad();
#ifdef WITH_TORCHAMP
  amp::scale_loss(loss, optimizer).backward();
#else
  loss.backward();
#endif
  optimizer.step();
  print(iteration, {loss}, parameters(), optimizer);
}

void Autoencoder::write() const {
#ifdef WITH_TORCHAMP
  amp::save(amped_, run_.file("amp"));
#else
  torch::serialize::OutputArchive archive;
  save(archive);
  archive.save_to(run_.file("net"));
  torch::save(adam_, run_.file("adam"));
#endif
}

void Autoencoder::read() {
#ifdef WITH_TORCHAMP
  amp::load(amped_, run_.file("amp"));
#else
  torch::serialize::InputArchive archive;
  archive.load_from(run_.file("net"));
  load(archive);
  torch::load(adam_, run_.file("adam"));
#endif
}

void train(const Run& run) {
  Autoencoder autoencoder(run);
  if (run.resumes()) autoencoder.read();
  for (int64_t iteration = run.first(); iteration < Run::kIterations; ++iteration) {
    if (run.saves_before(iteration)) autoencoder.write();
    torch::manual_seed(iteration);
    autoencoder.learn(iteration);
  }
}
