// Actor-critic: a network that samples actions and keeps what its update needs.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include "run.h"

namespace F = torch::nn::functional;

/// The pole falls; pushing the right way holds it.
class Pole {
 public:
  Pole() { state_ = 0.1 * torch::randn({1, 4}); }
  torch::Tensor state() const { return state_; }
  /// The reward of an action.
  double push(int64_t action) {
    const double force = action == 1 ? 0.1 : -0.1;
    state_ = 1.05 * state_ + force;
    return 1 - state_.abs().max().item<double>();
  }

 private:
  torch::Tensor state_;
};

struct PolicyImpl : torch::nn::Module {
  PolicyImpl() {
    register_module("body", body);
    register_module("action_head", action_head);
    register_module("value_head", value_head);
  }

  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& state) {
    const torch::Tensor x = torch::relu(body(state));
    return {torch::softmax(action_head(x), -1), value_head(x)};
  }

  int64_t act(const torch::Tensor& state) {
    const auto [probabilities, value] = forward(state);
    const torch::Tensor action = probabilities.multinomial(1);
    log_probs.push_back(probabilities.gather(1, action).log());
    values.push_back(value);
    return action.item<int64_t>();
  }

  torch::nn::Linear body{4, 32}, action_head{32, 2}, value_head{32, 1};
  std::vector<torch::Tensor> log_probs, values;  // of the episode
};
TORCH_MODULE(Policy);

torch::Tensor discounted(const std::vector<double>& rewards) {
  std::vector<float> returns(rewards.size());
  double sum = 0;
  for (size_t i = rewards.size(); i-- > 0;) {
    sum = rewards[i] + 0.9 * sum;
    returns[i] = static_cast<float>(sum);
  }
  return torch::tensor(returns);
}

torch::Tensor loss_of_episode(PolicyImpl& policy, const std::vector<double>& rewards) {
  const torch::Tensor returns = discounted(rewards);
  const torch::Tensor values = torch::cat(policy.values).flatten();
  const torch::Tensor log_probs = torch::cat(policy.log_probs).flatten();
  const torch::Tensor advantages = returns - values.detach();
  policy.values.clear();
  policy.log_probs.clear();
  return -(log_probs * advantages).sum() + F::smooth_l1_loss(values, returns);
}

void train(const Run& run) {
  Policy net;
  torch::optim::Adam adam(net->parameters(), 1e-2);
#ifdef WITH_TORCHAMP
  auto amped = amp::initialize(net, adam, run.options());
  auto& [policy, optimizer] = amped;
  if (run.resumes()) amp::load(amped, run.file("amp"));
#else
  Policy& policy = net;
  torch::optim::Adam& optimizer = adam;
  if (run.resumes()) torch::load(net, run.file("net"));
  if (run.resumes()) torch::load(adam, run.file("adam"));
#endif

  for (int64_t episode = run.first(); episode < Run::kIterations; ++episode) {
    if (run.saves_before(episode)) {
#ifdef WITH_TORCHAMP
      amp::save(amped, run.file("amp"));
#else
      torch::save(net, run.file("net"));
      torch::save(adam, run.file("adam"));
#endif
    }
    torch::manual_seed(episode);
    Pole pole;
    std::vector<double> rewards;
    for (int step = 0; step < 8; ++step) {
#ifdef WITH_TORCHAMP
      const int64_t action = policy.call(&PolicyImpl::act, pole.state());
#else
      const int64_t action = policy->act(pole.state());
#endif
      rewards.push_back(pole.push(action));
    }
    const torch::Tensor loss = run.loss(episode, loss_of_episode(*policy, rewards));
    optimizer.zero_grad();
#ifdef WITH_TORCHAMP
    amp::scale_loss(loss, optimizer).backward();
#else
    loss.backward();
#endif
    optimizer.step();
    print(episode, {loss}, policy->parameters(), optimizer);
  }
}
