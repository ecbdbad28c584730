// Mistakes that may be meant: one message each.
#include <torchamp/optim/sgd.h>

#include <functional>

#include "errors.h"
#include "training.h"

namespace torchamp {
namespace {

using at::Tensor;

class WarningsTest : public LevelTest {
 protected:
  static std::string logged(const std::function<void()>& call) {
    const Logged logged;
    call();
    return logged.text();
  }
};

TEST_P(WarningsTest, OfStochasticRoundingBesideMasters) {
  Net net = make_net(device());
  torch::optim::SGD plain(net->first->parameters(), 0.1);
  optim::FusedSGD sgd(net->last->parameters(), optim::FusedSGDOptions(0.1),
                      optim::StorageOptions().stochastic_rounding(true));
  const std::string text =
      "initialize: expected optimizers[1] without stochastic_rounding, which is of bfloat16 "
      "parameters that have no masters, got one with it, which changes nothing; set "
      "master_weights to false, or leave it out\n";
  EXPECT_EQ(logged([&] {
              (void)initialize(net, {plain, sgd}, level());
            }),
            level() == OptLevel::O2 ? text : "");
}

TORCHAMP_AT_LEVELS(WarningsTest, OptLevel::O1, OptLevel::O2);

}  // namespace
}  // namespace torchamp
