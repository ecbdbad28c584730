// Parameters that a program adds to an optimizer after initialize, by either of its handles.
#include <torchamp/optim/sgd.h>

#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using Group = torch::optim::OptimizerParamGroup;

/// A network whose last layer joins the optimizer in the middle of training.
template <class SGD, class Options>
struct Joining {
  Joining(at::Device device, torchamp::Options options)
      : net(make_net(device)),
        batch(make_batch(device)),
        sgd(net->first->parameters(), Options(0.1)),
        amped(initialize(net, sgd, options)) {}

  void backward() {
    scale_loss(loss_of(amped.model(batch.data), batch.target), amped.optimizer).backward();
  }
  void step() {
    amped.optimizer.zero_grad();
    backward();
    EXPECT_TRUE(amped.optimizer.step());
  }

  Net net;
  Batch batch;
  SGD sgd;
  Amped<Net> amped;
};

class GroupsTest : public LevelTest {
 protected:
  static Options options() { return quiet(level()).loss_scale(1024.0); }
  /// The parameters after two steps with the group, which `add` adds.
  template <class SGD, class SGDOptions, class Add>
  static std::vector<at::Tensor> trained(const Add& add) {
    Joining<SGD, SGDOptions> joining(device(), options());
    joining.step();
    add(joining, Group(joining.net->last->parameters()));
    joining.step();
    joining.step();
    EXPECT_EQ(joining.amped.optimizer.master_params().size(), 4U);
    return clones(joining.net->parameters());
  }
  template <class SGD, class SGDOptions>
  static void expect_both_ways_alike() {
    const auto expected = trained<SGD, SGDOptions>(
        [](auto& joining, const Group& group) { joining.amped.optimizer.add_param_group(group); });
    const auto got = trained<SGD, SGDOptions>(
        [](auto& joining, const Group& group) { joining.sgd.add_param_group(group); });
    EXPECT_TRUE(same_bits(got, expected));
  }
};

TEST_P(GroupsTest, OfTheWrappedOptimizerAreTrainedAlike) {
  expect_both_ways_alike<torch::optim::SGD, torch::optim::SGDOptions>();
  expect_both_ways_alike<optim::FusedSGD, optim::FusedSGDOptions>();
}

TEST_P(GroupsTest, GradsOfABackwardBeforeAreNotStepped) {
  Joining<torch::optim::SGD, torch::optim::SGDOptions> joining(device(), options());
  joining.backward();
  const auto before = clones(joining.net->last->parameters());
  joining.amped.optimizer.add_param_group(Group(joining.net->last->parameters()));
  EXPECT_TRUE(joining.amped.optimizer.step());
  EXPECT_TRUE(same_bits(joining.net->last->parameters(), before));
  joining.step();
  EXPECT_FALSE(same_bits(joining.net->last->parameters(), before));
}

TEST_P(GroupsTest, OfParametersThatAreSteppedAreRefused) {
  Net net = make_net(device());
  torch::optim::SGD one(net->first->parameters(), 0.1), other(net->last->parameters(), 0.1);
  auto many = initialize(std::make_tuple(net), {one, other}, options());
  one.add_param_group(Group(net->last->parameters()));
  EXPECT_EQ(message_of([&] { many.optimizers[0].zero_grad(); }),
            "Optimizer::add_param_group: expected parameters that are in no group yet, got one of "
            "sizes [2, 16] that an optimizer of this initialize steps already");
}

TORCHAMP_AT_LEVELS(GroupsTest, OptLevel::O1, OptLevel::O2);

}  // namespace
}  // namespace torchamp
