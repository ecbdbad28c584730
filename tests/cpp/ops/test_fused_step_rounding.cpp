// Steps that round stochastically.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

#include "device.h"
#include "step_case.h"

namespace torchamp {
namespace {

using at::Tensor;
using List = std::vector<Tensor>;

class FusedStepRoundingTest : public DeviceTest {
 protected:
  static Lists lists_of(std::vector<List> lists) {
    Lists all;
    all.names.resize(lists[0].size());
    all.lists = std::move(lists);
    return all;
  }

  static List like(const List& tensors, at::ScalarType dtype) {
    List made;
    for (const Tensor& tensor : tensors) made.push_back(at::zeros_like(tensor, dtype));
    return made;
  }

  /// A case whose states are zeros.
  static StepCase case_of(StepAlgorithm algorithm, const List& grads, const List& params,
                          const List& models, at::ScalarType states = at::kFloat) {
    std::vector<List> lists = {grads, params};
    for (int64_t s = 0; s < states_of(algorithm); ++s) lists.push_back(like(grads, states));
    lists.push_back(models);
    return make_case(algorithm, {{}}, lists_of(std::move(lists)), device());
  }

  static Tensor normal(unsigned seed, at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return Random(seed).normal(sizes, dtype, device());
  }
};

TEST_P(FusedStepRoundingTest, SmallUpdatesLandStochastically) {
  const Tensor weight = at::full({1 << 16}, 1.0, at::device(device()).dtype(at::kBFloat16));
  const Tensor grad = at::full({1 << 16}, 0.005, at::device(device()));  // lr 0.1: 0.0005 a step
  StepCase nearest = case_of(StepAlgorithm::kSgd, {grad}, {weight.clone()}, {});
  StepCase stochastic = case_of(StepAlgorithm::kSgd, {grad}, {weight.clone()}, {});
  stochastic.scalars.stochastic_rounding = true;
  for (int step = 0; step < 100; ++step) {
    run(nearest);
    run(stochastic);
  }
  const auto mean = [](const StepCase& call) {
    return call.params()[0].to(at::kDouble).mean().item<double>();
  };
  EXPECT_EQ(mean(nearest), 1.0) << "0.0005 is less than half of what bfloat16 tells from 1";
  EXPECT_NEAR(mean(stochastic), 0.95, 1e-3);
}

TEST_P(FusedStepRoundingTest, BFloat16MomentsDoNotStall) {
  const Tensor grad = at::full({1 << 14}, 1.0, at::device(device()));
  StepCase call = case_of(StepAlgorithm::kAdam, {grad}, {normal(3, {1 << 14})}, {}, at::kBFloat16);
  call.groups[0].beta2 = 0.999;
  call = make_case(StepAlgorithm::kAdam, call.groups, call.all, device());
  for (int step = 0; step < 300; ++step) run(call);
  const double expected = 1.0 - std::pow(0.999, 300);
  const Tensor averages = call.states()[1].to(at::kDouble);
  EXPECT_NEAR(averages.mean().item<double>(), expected, 0.01 * expected);
}

TEST_P(FusedStepRoundingTest, RoundingIsReproducible) {
  const List grads = {normal(1, {100000}), normal(1, {33}), normal(1, {30, 20})};
  const List params = {normal(2, {100000}, at::kBFloat16), normal(2, {33}, at::kBFloat16),
                       normal(2, {20, 30}, at::kBFloat16).t()};
  const auto stepped = [&] {
    StepCase call = case_of(StepAlgorithm::kMomentum, grads, clones(params), {}, at::kBFloat16);
    call.scalars.stochastic_rounding = true;
    for (int step = 0; step < 3; ++step) run(call);
    return call.written();
  };
  EXPECT_TRUE(same_bits(stepped(), stepped()));
}

TORCHAMP_ON_EACH_DEVICE(FusedStepRoundingTest);

}  // namespace
}  // namespace torchamp
