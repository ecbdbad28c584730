// AlphaZero: a tower of residual blocks with two heads, which returns a struct; self-play in
// evaluation mode, a schedule of learning rates.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <memory>

#include "run.h"

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr int64_t kBoard = 4, kMoves = kBoard * kBoard, kFilters = 8;

struct NetOutput {
  torch::Tensor policy, value;
};
#ifdef WITH_TORCHAMP
inline auto amp_members(NetOutput& output) {
  return std::tie(output.policy, output.value);
}
#endif

nn::Conv2d conv3x3(int64_t from, int64_t to) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, 3).padding(1).bias(false));
}

struct ResBlockImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = torch::relu(norm1(conv1(x)));
    return torch::relu(x + norm2(conv2(y)));
  }
  nn::Conv2d conv1 = register_module("conv1", conv3x3(kFilters, kFilters));
  nn::Conv2d conv2 = register_module("conv2", conv3x3(kFilters, kFilters));
  nn::BatchNorm2d norm1 = register_module("norm1", nn::BatchNorm2d(kFilters));
  nn::BatchNorm2d norm2 = register_module("norm2", nn::BatchNorm2d(kFilters));
};
TORCH_MODULE(ResBlock);

class AlphaZeroNet : public nn::Module {
 public:
  explicit AlphaZeroNet(int64_t blocks) {
    register_module("stem", stem_);
    register_module("tower", tower_);
    register_module("policy_head", policy_head_);
    register_module("value_head", value_head_);
    for (int64_t i = 0; i < blocks; ++i) tower_->push_back(ResBlock());
  }
  NetOutput forward(torch::Tensor board) {
    torch::Tensor x = torch::relu(stem_(board));
    for (const auto& block : *tower_) x = block->as<ResBlockImpl>()->forward(x);
    x = x.flatten(1);
    return {policy_head_(x), torch::tanh(value_head_(x))};
  }

 private:
  nn::Conv2d stem_ = conv3x3(2, kFilters);
  nn::ModuleList tower_;
  nn::Linear policy_head_{kFilters * kMoves, kMoves}, value_head_{kFilters * kMoves, 1};
};

struct Games {
  torch::Tensor boards, moves, outcomes;
};

/// Positions, the moves that the network prefers there after a look at the board, and who wins.
template <class Net>
Games play(Net& net) {
  torch::NoGradGuard no_grad;
  net->eval();
  Games games;
  games.boards = (torch::rand({16, 2, kBoard, kBoard}) > 0.6).to(torch::kFloat);
#ifdef WITH_TORCHAMP
  const NetOutput output = net(games.boards);
#else
  const NetOutput output = net->forward(games.boards);
#endif
  const torch::Tensor search = games.boards.select(1, 0).flatten(1);
  games.moves = torch::softmax(0.1 * output.policy + 2 * search, 1);
  games.outcomes = torch::sign(games.boards.select(1, 0).sum({1, 2}) - 6).unsqueeze(1);
  net->train();
  return games;
}

void train(const Run& run) {
  auto module = std::make_shared<AlphaZeroNet>(2);
  torch::optim::SGD sgd(module->parameters(),
                        torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4));
  torch::optim::StepLR scheduler(sgd, 3, 0.5);
  for (int64_t i = 0; i < run.first(); ++i) scheduler.step();
#ifdef WITH_TORCHAMP
  auto amped = amp::initialize(module, sgd, run.options());
  auto& [net, optimizer] = amped;
  if (run.resumes()) amp::load(amped, run.file("amp"));
#else
  auto& net = module;
  auto& optimizer = sgd;
  if (run.resumes()) torch::load(net, run.file("net"));
  if (run.resumes()) torch::load(sgd, run.file("sgd"));
#endif

  for (int64_t iteration = run.first(); iteration < Run::kIterations; ++iteration) {
    if (run.saves_before(iteration)) {
#ifdef WITH_TORCHAMP
      amp::save(amped, run.file("amp"));
#else
      torch::save(net, run.file("net"));
      torch::save(sgd, run.file("sgd"));
#endif
    }
    torch::manual_seed(iteration);
    const Games games = play(net);
#ifdef WITH_TORCHAMP
    const auto [policy, value] = net(games.boards);
#else
    const auto [policy, value] = net->forward(games.boards);
#endif
    const torch::Tensor policy_loss = -(games.moves * torch::log_softmax(policy, 1)).sum(1).mean();
    const torch::Tensor value_loss = F::mse_loss(value, games.outcomes);
    const torch::Tensor loss = run.loss(iteration, policy_loss + value_loss);
    optimizer.zero_grad();
#ifdef WITH_TORCHAMP
    amp::scale_loss(loss, optimizer).backward();
#else
    loss.backward();
#endif
    optimizer.step();
    scheduler.step();
    print(iteration, {policy_loss, value_loss}, net->parameters(), optimizer);
  }
}
