// Parameters with masters, which have one optimizer.
#include "errors.h"
#include "net.h"

namespace torchamp {
namespace {

using at::Tensor;

class OneOwnerTest : public LevelTest {
 protected:
  static std::vector<Tensor> params_from(const Net& net, bool first) {
    return first ? std::vector{net->first->weight, net->last->weight}
                 : std::vector{net->last->weight, net->norm->weight};
  }
  AmpedMany<Net> initialized() {
    return initialize(std::make_tuple(net_), OptimizerRefs{one_, other_},
                      quiet(level()).loss_scale("dynamic"));
  }

  Net net_ = make_net(device());
  torch::optim::SGD one_{params_from(net_, true), 0.5};
  torch::optim::SGD other_{params_from(net_, false), 0.5};
};

const char* const kRemedy = "make one optimizer with two groups, or train in phases: ";

TEST_P(OneOwnerTest, InitializeRefusesASecondOneAndChangesNothing) {
  EXPECT_EQ(message_of([&] { (void)initialized(); }),
            std::string("initialize: expected parameter \"last.weight\", which gets a float32 "
                        "master, in one optimizer, got it in optimizers[0] and optimizers[1]; ") +
                kRemedy + "amp.release(model), then initialize with the other optimizer");
  EXPECT_EQ(net_->last->weight.scalar_type(), at::kFloat);
  EXPECT_TRUE(one_.param_groups()[0].params()[1].is_same(net_->last->weight));
}

TEST_P(OneOwnerTest, AddParamGroupRefusesASecondOne) {
  torch::optim::SGD third(net_->norm->parameters(), 0.5);
  Net other = make_net(device(), 2);
  torch::optim::SGD of_other(other->parameters(), 0.5);
  auto many =
      initialize(std::make_tuple(net_, other), OptimizerRefs{third, of_other}, quiet(level()));
  const auto add = [&](size_t i, const Tensor& param) {
    many.optimizers[i].add_param_group(torch::optim::OptimizerParamGroup({param}));
  };
  const std::string expected =
      std::string(
          "Optimizer::add_param_group: expected a parameter that no other optimizer steps, since "
          "it has a float32 master, got one of sizes [2, 16] that another steps; ") +
      kRemedy + "amp.release(model), then initialize with the other optimizer";
  EXPECT_EQ(message_of<c10::ValueError>([&] { add(0, other->last->weight); }), expected);
  EXPECT_EQ(message_of([&] { add(0, many.optimizers[1].master_params()[2]); }), expected);
  EXPECT_EQ(message_of([&] { add(1, other->last->weight); }),
            "Optimizer::add_param_group: expected parameters that are in no group yet, got one of "
            "sizes [2, 16] that the optimizer steps already");
  EXPECT_EQ(of_other.param_groups().size(), 1U);
  EXPECT_EQ(message_of([&] { add(0, net_->last->weight); }), "no error");
}

TORCHAMP_AT_LEVELS(OneOwnerTest, OptLevel::O2, OptLevel::O5);

}  // namespace
}  // namespace torchamp
