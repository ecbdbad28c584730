// DDPG: an agent with two networks and their targets, two optimizers, soft updates and a replay
// buffer.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <memory>

#include "run.h"

namespace F = torch::nn::functional;

struct Actor : torch::nn::Module {
  torch::Tensor forward(torch::Tensor state) {
    return torch::tanh(fc2->forward(torch::relu(fc1->forward(state))));
  }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(3, 32));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(32, 1));
};

struct Critic : torch::nn::Module {
  torch::Tensor forward(torch::Tensor state, torch::Tensor action) {
    const torch::Tensor x = torch::relu(fc1->forward(torch::cat({state, action}, 1)));
    return fc2->forward(x);
  }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(4, 32));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(32, 1));
};

/// Tensors with a row for each step, of which the replay buffer keeps the last.
struct Experience {
  torch::Tensor state, action, reward, next_state;
};

void update(torch::nn::Module& target, const torch::nn::Module& local, double tau) {
  torch::NoGradGuard no_grad;
  const auto from = local.parameters();
  auto to = target.parameters();
  for (size_t i = 0; i < to.size(); ++i) {
    to[i].data().copy_(tau * from[i].data() + (1.0 - tau) * to[i].data());
  }
}

class Agent {
 public:
  explicit Agent(const Run& run) : run_(run) {
    update(*actor_target_, *actor_local_, 1);
    update(*critic_target_, *critic_local_, 1);
  }

  void explore() {
    torch::Tensor state = torch::randn({1, 3});
    for (int step = 0; step < 8; ++step) {
      const torch::Tensor action = (act(state) + 0.1 * torch::randn({1, 1})).clamp(-1, 1);
      const torch::Tensor next = 0.9 * state + 0.3 * action;
      push(memory_.state, state);
      push(memory_.action, action);
      push(memory_.reward, -next.pow(2).sum(1, true));
      push(memory_.next_state, next);
      state = next;
    }
  }

  void learn(int64_t episode);
  void save() const;
  void load();

 private:
  torch::Tensor act(const torch::Tensor& state) {
    torch::NoGradGuard no_grad;
#ifdef WITH_TORCHAMP
    return std::get<0>(amped_.models)(state);
#else
    return actor_local_->forward(state);
#endif
  }

  static void push(torch::Tensor& memory, const torch::Tensor& row) {
    memory = memory.defined() ? torch::cat({memory, row}).slice(0, -32) : row;
  }

  const Run& run_;
  std::shared_ptr<Actor> actor_local_ = std::make_shared<Actor>();
  std::shared_ptr<Actor> actor_target_ = std::make_shared<Actor>();
  std::shared_ptr<Critic> critic_local_ = std::make_shared<Critic>();
  std::shared_ptr<Critic> critic_target_ = std::make_shared<Critic>();
  torch::optim::Adam actor_adam_{actor_local_->parameters(), 1e-3};
  torch::optim::Adam critic_adam_{critic_local_->parameters(), 1e-2};
#ifdef WITH_TORCHAMP
  amp::AmpedMany<std::shared_ptr<Actor>, std::shared_ptr<Critic>> amped_ = amp::initialize(
      std::make_tuple(actor_local_, critic_local_), {actor_adam_, critic_adam_}, run_.options());
#endif
  Experience memory_;
};

void Agent::learn(int64_t episode) {
#ifdef WITH_TORCHAMP
  auto& [actor, critic] = amped_.models;
  auto &actor_optimizer = amped_.optimizers[0], &critic_optimizer = amped_.optimizers[1];
#else
  auto& actor = *actor_local_;
  auto& critic = *critic_local_;
  auto &actor_optimizer = actor_adam_, &critic_optimizer = critic_adam_;
#endif
  const torch::Tensor picked = torch::randint(memory_.state.size(0), {16}, torch::kLong);
  const torch::Tensor states = memory_.state.index({picked});
  const torch::Tensor next_states = memory_.next_state.index({picked});

  const torch::Tensor next_values =
      critic_target_->forward(next_states, actor_target_->forward(next_states)).detach();
  const torch::Tensor wanted = memory_.reward.index({picked}) + 0.9 * next_values;
  const torch::Tensor values = critic.forward(states, memory_.action.index({picked}));
  const torch::Tensor critic_loss = run_.loss(episode, F::mse_loss(values, wanted));
  critic_optimizer.zero_grad();
#ifdef WITH_TORCHAMP
  amp::scale_loss(critic_loss, critic_optimizer).backward();
#else
  critic_loss.backward();
#endif
  torch::nn::utils::clip_grad_norm_(critic_local_->parameters(), 1.0);
  critic_optimizer.step();

  const torch::Tensor actor_loss =
      run_.loss(episode, -critic.forward(states, actor.forward(states)).mean());
  actor_optimizer.zero_grad();
#ifdef WITH_TORCHAMP
  amp::scale_loss(actor_loss, actor_optimizer).backward();
#else
  actor_loss.backward();
#endif
  actor_optimizer.step();

  update(*actor_target_, *actor_local_, 0.01);
  update(*critic_target_, *critic_local_, 0.01);
  std::vector<torch::Tensor> weights = critic_local_->parameters();
  for (const torch::Tensor& each : actor_local_->parameters()) weights.push_back(each);
  print(episode, {critic_loss, actor_loss}, weights, critic_optimizer, actor_optimizer);
}

void Agent::save() const {
#ifdef WITH_TORCHAMP
  amp::save(amped_, run_.file("amp"));
#else
  torch::save(actor_local_, run_.file("actor"));
  torch::save(critic_local_, run_.file("critic"));
  torch::save(actor_adam_, run_.file("actor_adam"));
  torch::save(critic_adam_, run_.file("critic_adam"));
#endif
  torch::save(actor_target_, run_.file("actor_target"));
  torch::save(critic_target_, run_.file("critic_target"));
  const auto& [state, action, reward, next] = memory_;
  torch::save(std::vector<torch::Tensor>{state, action, reward, next}, run_.file("memory"));
}

void Agent::load() {
#ifdef WITH_TORCHAMP
  amp::load(amped_, run_.file("amp"));
#else
  torch::load(actor_local_, run_.file("actor"));
  torch::load(critic_local_, run_.file("critic"));
  torch::load(actor_adam_, run_.file("actor_adam"));
  torch::load(critic_adam_, run_.file("critic_adam"));
#endif
  torch::load(actor_target_, run_.file("actor_target"));
  torch::load(critic_target_, run_.file("critic_target"));
  std::vector<torch::Tensor> memory;
  torch::load(memory, run_.file("memory"));
  memory_ = {memory[0], memory[1], memory[2], memory[3]};
}

void train(const Run& run) {
  Agent agent(run);
  if (run.resumes()) agent.load();
  for (int64_t episode = run.first(); episode < Run::kIterations; ++episode) {
    if (run.saves_before(episode)) agent.save();
    torch::manual_seed(episode);
    agent.explore();
    agent.learn(episode);
  }
}
