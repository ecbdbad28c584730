// Self-play: a trainer in a static, which ends after main, and a thread that plays by the network
// which it reads from the trainer's last file while the trainer trains.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <unistd.h>

#include <filesystem>
#include <future>
#include <memory>

#include "run.h"

namespace F = torch::nn::functional;

struct Net : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& board) { return value(torch::relu(body(board))); }
  torch::nn::Linear body = register_module("body", torch::nn::Linear(9, 32));
  torch::nn::Linear value = register_module("value", torch::nn::Linear(32, 1));
};

struct Trainer {
  explicit Trainer(const Run& run);

  void learn(const torch::Tensor& loss) {
    optimizer.zero_grad();
#ifdef WITH_TORCHAMP
    amp::scale_loss(loss, optimizer).backward();
#else
    loss.backward();
#endif
    optimizer.step();
  }
  void save(const std::string& path) const {
#ifdef WITH_TORCHAMP
    amp::save(amped, path);
#else
    torch::save(net, path + ".net");
    torch::save(sgd, path + ".sgd");
#endif
  }
  void load(const std::string& path) {
#ifdef WITH_TORCHAMP
    amp::load(amped, path);
#else
    torch::load(net, path + ".net");
    torch::load(sgd, path + ".sgd");
#endif
  }

  std::shared_ptr<Net> net = std::make_shared<Net>();
  torch::optim::SGD sgd{net->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9)};
#ifdef WITH_TORCHAMP
  amp::Amped<std::shared_ptr<Net>> amped;
  amp::Model<std::shared_ptr<Net>>& model = amped.model;
  amp::Optimizer& optimizer = amped.optimizer;
#else
  Net& model = *net;
  torch::optim::SGD& optimizer = sgd;
#endif
};

#ifdef WITH_TORCHAMP
Trainer::Trainer(const Run& run) : amped(amp::initialize(net, sgd, run.options())) {}
#else
Trainer::Trainer(const Run&) {}
#endif

Trainer& the_trainer(const Run& run) {
  static Trainer trainer(run);
  return trainer;
}

/// A folder for the last file, which is gone when the program ends.
struct Folder {
  Folder() { std::filesystem::create_directory(path); }
  ~Folder() {
    for (const auto& file : std::filesystem::directory_iterator(path)) remove(file);
    remove(path);
  }
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("self_play." + std::to_string(getpid()));
};

torch::Tensor outcomes(const torch::Tensor& boards) {
  return boards.select(1, 4).unsqueeze(1);
}

/// What the network of a file expects after a move, by a network of this thread's own.
torch::Tensor play(const Run& run, const std::string& path, const torch::Tensor& boards) {
  const torch::NoGradGuard no_grad;
  Trainer own(run);
  own.load(path);
  return 0.5 * outcomes(boards) + 0.5 * own.model.forward(boards.flip(1));
}

void train(const Run& run) {
  Trainer& trainer = the_trainer(run);
  const Folder folder;
  const std::string last = folder.path / "last";
  if (run.resumes()) trainer.load(run.file("run"));

  for (int64_t i = run.first(); i < Run::kIterations; ++i) {
    if (run.saves_before(i)) trainer.save(run.file("run"));
    torch::manual_seed(i);
    const torch::Tensor known = torch::randn({32, 9}), played = torch::randn({32, 9});
    trainer.save(last);
    auto targets = std::async(std::launch::async, play, run, last, played);
    const torch::Tensor of_known =
        run.loss(i, F::mse_loss(trainer.model.forward(known), outcomes(known)));
    trainer.learn(of_known);
    const torch::Tensor of_played =
        run.loss(i, F::mse_loss(trainer.model.forward(played), targets.get()));
    trainer.learn(of_played);
    print(i, {of_known, of_played}, trainer.net->parameters(), trainer.optimizer);
  }
}
