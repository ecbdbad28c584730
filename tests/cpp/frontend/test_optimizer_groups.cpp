// Groups that a program edits after initialize.
#include <torchamp/optim/sgd.h>

#include <functional>
#include <optional>

#include "checkpoint/float32_saves.h"
#include "core/param.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;
using Group = torch::optim::OptimizerParamGroup;

class GroupsTest : public LevelTest {
 protected:
  static Options options() { return quiet(level()).loss_scale(1024.0); }
};

/// What was done to the groups of both: LibTorch's optimizer in float32, and one under initialize.
template <class O>
struct Edited {
  Edited(at::Device device, const Options& options)
      : net(make_net(device)), optimizer(net->first->parameters(), 0.25) {
    const at::NoGradGuard no_grad;
    for (const Tensor& param : net->parameters()) Tensor(param).fill_(0.5);
    if (options.enabled()) amped.emplace(initialize(net, optimizer, options));
  }

  std::vector<Tensor>& group() { return optimizer.param_groups()[0].params(); }
  /// A step by the sum of all that the groups may hold, whose grads are exact.
  void step() {
    optimizer.zero_grad();
    net->zero_grad();
    Tensor loss;
    for (const Tensor& param : net->parameters()) {
      const Tensor sum = param.to(at::kFloat).sum();
      loss = loss.defined() ? loss + sum : sum;
    }
    if (amped) {
      { scale_loss(loss, amped->optimizer).backward(); }
      amped->optimizer.step();
    } else {
      loss.backward();
      optimizer.step();
    }
  }
  std::vector<Tensor> values() const {
    std::vector<Tensor> all;
    for (const Tensor& param : net->parameters()) {
      const auto known = core::param_of(param);
      all.push_back((known != nullptr ? known->master : param).detach().to(at::kFloat));
    }
    return all;
  }

  Net net;
  O optimizer;
  std::optional<Amped<Net>> amped;
};

template <class O>
void expect_edits_are_followed(at::Device device, const Options& options) {
  std::vector<Tensor> removed[2];
  const std::vector<std::function<void(Net&, std::vector<Tensor>&, std::vector<Tensor>&)>> edits = {
      [](Net& net, auto& group, auto&) { group.push_back(net->last->weight); },
      [](Net&, auto& group, auto& kept) {
        kept = {group[0]};
        group.erase(group.begin());
      },
      [](Net&, auto& group, auto& kept) { group.push_back(kept[0]); },
      [](Net& net, auto& group, auto& kept) {
        group = net->parameters();
        group[0] = kept[0];
      },
      [](Net& net, auto& group, auto& kept) {
        group = {kept[0], net->last->bias};
      },
  };
  Edited<O> edited(device, options), plain(device, Options(options).enabled(false));
  for (const auto& edit : edits) {
    edit(edited.net, edited.group(), removed[0]);
    edit(plain.net, plain.group(), removed[1]);
    for (Edited<O>* each : {&edited, &plain}) each->step();
    const auto got = edited.values(), expected = plain.values();
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::allclose(got[i], expected[i])) << i;
  }
}

TEST_P(GroupsTest, ThatTheProgramEditsAreFollowed) {
  expect_edits_are_followed<torch::optim::SGD>(device(), options());
  expect_edits_are_followed<optim::FusedSGD>(device(), options());
}

TEST_P(GroupsTest, MayBeClearedAndMadeAgain) {
  const auto values = [](const Options& options) {
    Edited<torch::optim::SGD> edited(device(), options);
    edited.step();
    auto& groups = edited.optimizer.param_groups();
    auto own = groups.back().options().clone();
    groups.clear();
    edited.optimizer.add_param_group(Group(edited.net->last->parameters(), std::move(own)));
    edited.step();
    return edited.values();
  };
  const auto got = values(options()), expected = values(options().enabled(false));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::allclose(got[i], expected[i])) << i;
}

/// By the model's own tensor.
template <class O>
void expect_its_master_on_return(at::Device device, const Options& options) {
  Edited<O> edited(device, options);
  auto& groups = edited.optimizer.param_groups();
  edited.step();
  const Tensor stepped = edited.group()[0], value = stepped.detach().clone();
  auto options_of_popped = groups.back().options().clone();
  groups.pop_back();
  groups.emplace_back(edited.net->last->parameters(), std::move(options_of_popped));
  edited.step();
  EXPECT_TRUE(same_bits(stepped.detach(), value)) << "nobody steps it";
  edited.optimizer.add_param_group(Group(edited.net->first->parameters()));
  edited.step();
  EXPECT_TRUE(same_bits(stepped.detach(), value.sub(0.25)));
}

TEST_P(GroupsTest, AParameterThatComesBackHasItsMasterAgain) {
  expect_its_master_on_return<torch::optim::SGD>(device(), options());
  expect_its_master_on_return<optim::FusedSGD>(device(), options());
}

/// As a module that joins in float32, and is cast afterwards.
TEST_P(GroupsTest, AParameterThatIsCastInTheOptimizerGetsAMaster) {
  if (level() != OptLevel::O2) GTEST_SKIP() << "no masters";
  Net net = make_net(device());
  torch::nn::Linear added(2, 2);
  added->to(device());
  torch::optim::SGD sgd(net->parameters(), 0.25);
  auto [model, optimizer] = initialize(net, sgd, options());
  optimizer.add_param_group(Group(added->parameters()));
  const auto step = [&] {
    optimizer.zero_grad();
    scale_loss(added->weight.to(at::kFloat).sum() * 0.0001, optimizer).backward();
    EXPECT_TRUE(optimizer.step());
  };
  step();
  added->to(at::kHalf);
  const Tensor before = added->weight.detach().to(at::kFloat);
  for (int i = 0; i < 40; ++i) step();
  const Tensor value = checkpoint::float32_of(added->weight);
  EXPECT_LT((value - (before - 0.001)).abs().max().item<double>(), 1e-5) << "not rounded away";
}

/// Before the optimizer that it leaves is asked for anything.
TEST_P(GroupsTest, AParameterMovesToAnotherOptimizer) {
  Net net = make_net(device());
  torch::optim::SGD from(net->first->parameters(), 0.25), to(net->last->parameters(), 0.25);
  auto [models, optimizers] = initialize(std::make_tuple(net), OptimizerRefs{from, to}, options());
  const Tensor moved = net->first->weight, before = moved.detach().clone();
  auto& group = from.param_groups()[0].params();
  group.erase(group.begin());
  to.param_groups()[0].params().push_back(moved);
  { scale_loss(moved.to(at::kFloat).sum(), optimizers[1]).backward(); }
  EXPECT_TRUE(optimizers[1].step());
  EXPECT_FALSE(same_bits(moved.detach(), before));
}

TORCHAMP_AT_LEVELS(GroupsTest, OptLevel::O0, OptLevel::O1, OptLevel::O2);

}  // namespace
}  // namespace torchamp
