// PPO: a Gaussian policy that keeps its distribution, the old policy, epochs of minibatches and
// clipping.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <cmath>

#include "run.h"

struct ActorCriticImpl : torch::nn::Module {
  ActorCriticImpl(int64_t inputs, int64_t actions, double std)
      : body(register_module("body", torch::nn::Linear(inputs, 32))),
        mu(register_module("mu", torch::nn::Linear(32, actions))),
        value(register_module("value", torch::nn::Linear(32, 1))),
        log_std(register_parameter("log_std", torch::full(actions, std::log(std)))) {}

  /// Actions and values; actions are sampled in training.
  auto forward(torch::Tensor x) -> std::tuple<torch::Tensor, torch::Tensor> {
    x = torch::tanh(body->forward(x));
    mean = torch::tanh(mu->forward(x));
    // Before torch 2.13 other numbers are drawn in 16 bits.
    const torch::Tensor drawn = torch::randn_like(mean, torch::kFloat).to(mean.scalar_type());
    const torch::Tensor noise = drawn * log_std.exp();
    const torch::Tensor action = is_training() ? mean + noise : mean;
    return {action, value->forward(x)};
  }
  /// Of the actions that the last forward had.
  torch::Tensor log_prob(torch::Tensor action) {
    const torch::Tensor z = (action - mean) / log_std.exp();
    return (-0.5 * z * z - log_std - 0.5 * std::log(2 * M_PI)).sum(-1, true);
  }
  torch::Tensor entropy() { return (0.5 + 0.5 * std::log(2 * M_PI) + log_std).sum(); }

  torch::nn::Linear body, mu, value;
  torch::Tensor log_std, mean;
};
TORCH_MODULE(ActorCritic);

struct Rollout {
  torch::Tensor states, actions, log_probs, returns, advantages;
};

#ifdef WITH_TORCHAMP
using Policy = amp::Model<ActorCritic>;
using Optimizer = amp::Optimizer;
#else
using Policy = ActorCritic;
using Optimizer = torch::optim::Optimizer;
#endif

Rollout collect(ActorCritic& old) {
  torch::NoGradGuard no_grad;
  Rollout rollout;
  rollout.states = torch::randn({32, 3});
  auto [actions, values] = old->forward(rollout.states);
  rollout.actions = actions;
  rollout.log_probs = old->log_prob(actions);
  rollout.returns = -(actions - rollout.states.mean(1, true)).pow(2).sum(1, true);
  rollout.advantages = rollout.returns - values;
  return rollout;
}

torch::Tensor loss_of(Policy& policy, const Rollout& rollout, const torch::Tensor& picked) {
  const torch::Tensor actions = rollout.actions.index_select(0, picked);
  const torch::Tensor advantages = rollout.advantages.index_select(0, picked);
#ifdef WITH_TORCHAMP
  const torch::Tensor values = std::get<1>(policy(rollout.states.index_select(0, picked)));
  const torch::Tensor log_probs = policy.call(&ActorCriticImpl::log_prob, actions);
  const torch::Tensor entropy = policy.call(&ActorCriticImpl::entropy);
#else
  const torch::Tensor values = std::get<1>(policy->forward(rollout.states.index_select(0, picked)));
  const torch::Tensor log_probs = policy->log_prob(actions);
  const torch::Tensor entropy = policy->entropy();
#endif
  const torch::Tensor ratio = (log_probs - rollout.log_probs.index_select(0, picked)).exp();
  const torch::Tensor clipped = ratio.clamp(0.8, 1.2) * advantages;
  const torch::Tensor actor_loss = -torch::min(ratio * advantages, clipped).mean();
  const torch::Tensor critic_loss =
      (rollout.returns.index_select(0, picked) - values).pow(2).mean();
  return 0.5 * critic_loss + actor_loss - 0.01 * entropy;
}

torch::Tensor update(Policy& policy, Optimizer& optimizer, const Rollout& rollout, const Run& run,
                     int64_t iteration) {
  torch::Tensor loss;
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (const torch::Tensor& picked : torch::randperm(32).split(16)) {
      loss = run.loss(iteration, loss_of(policy, rollout, picked));
      optimizer.zero_grad();
#ifdef WITH_TORCHAMP
      amp::scale_loss(loss, optimizer).backward();
#else
      loss.backward();
#endif
      torch::nn::utils::clip_grad_norm_(policy->parameters(), 0.5);
      optimizer.step();
    }
  }
  return loss;
}

void copy_weights(torch::nn::Module& to, const torch::nn::Module& from) {
  torch::NoGradGuard no_grad;
  const auto sources = from.named_parameters();
  for (auto& item : to.named_parameters()) item.value().copy_(sources[item.key()]);
}

void train(const Run& run) {
  ActorCritic net(3, 2, 0.5), old(3, 2, 0.5);
  torch::optim::Adam adam(net->parameters(), 1e-2);
#ifdef WITH_TORCHAMP
  auto amped = amp::initialize(net, adam, run.options());
  auto& [policy, optimizer] = amped;
  if (run.resumes()) amp::load(amped, run.file("amp"));
#else
  ActorCritic& policy = net;
  torch::optim::Adam& optimizer = adam;
  if (run.resumes()) torch::load(net, run.file("net"));
  if (run.resumes()) torch::load(adam, run.file("adam"));
#endif

  for (int64_t iteration = run.first(); iteration < Run::kIterations; ++iteration) {
    if (run.saves_before(iteration)) {
#ifdef WITH_TORCHAMP
      amp::save(amped, run.file("amp"));
#else
      torch::save(net, run.file("net"));
      torch::save(adam, run.file("adam"));
#endif
    }
    torch::manual_seed(iteration);
    copy_weights(*old, *net);
    const torch::Tensor loss = update(policy, optimizer, collect(old), run, iteration);
    print(iteration, {loss}, net->parameters(), optimizer);
  }
}
