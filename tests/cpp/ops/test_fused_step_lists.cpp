// Which of its tensors fused_step writes.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "device.h"
#include "step_case.h"

namespace torchamp {
namespace {

using at::Tensor;
using oracle::StepOptions;
using List = std::vector<Tensor>;

class FusedStepListsTest : public DeviceTest {
 protected:
  static Lists lists_of(std::vector<List> lists) {
    Lists all;
    all.names.resize(lists[0].size());
    all.lists = std::move(lists);
    return all;
  }
  static StepCase adam(const List& grads, const List& params, const List& models) {
    List averages, squares;
    for (const Tensor& param : params) {
      averages.push_back(at::zeros_like(param));
      squares.push_back(at::zeros_like(param));
    }
    return make_case(StepAlgorithm::kAdam, {{}},
                     lists_of({grads, params, averages, squares, models}), device());
  }
  static Tensor normal(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return Random(70).normal(sizes, dtype, device());
  }
};

std::vector<int64_t> versions_of(const List& tensors) {
  std::vector<int64_t> versions;
  for (const Tensor& tensor : tensors) versions.push_back(tensor._version());
  return versions;
}

TEST_P(FusedStepListsTest, SkipsParamsWithoutAGrad) {
  const List grads = {normal({40}), Tensor(), normal({7})};
  const List params = {normal({40}), normal({5}), normal({7})};
  const StepCase call = adam(grads, params, clones(params));
  const StepCase before = copy_of(call);
  run(call);
  expect_stepped(before, call);
  EXPECT_EQ(call.scalars.steps[1].item<float>(), before.scalars.steps[1].item<float>());
}

TEST_P(FusedStepListsTest, TakesUnscaledGradsAsTheyAre) {
  const List grads = {normal({300}, at::kHalf), normal({40}), normal({7}, at::kDouble),
                      normal({7}, at::kDouble)};
  const List params = {normal({300}), normal({40}), normal({7}, at::kDouble),
                       normal({7}, at::kDouble)};
  StepCase call = adam(grads, params, {Tensor(), Tensor(), Tensor(), Tensor()});
  call.scalars.grad_factor = scalar_of(1.0 / 3, at::kFloat, device());
  call.unscaled = {1, 2};
  const StepCase before = copy_of(call);
  run(call);
  expect_stepped(before, call);
}

TEST_P(FusedStepListsTest, WritesModelParamsWhereThereAreAny) {
  const List grads = {normal({3000}, at::kHalf), normal({300})};
  const List params = {normal({3000}), normal({300})};
  const List halves = {normal({3000}, at::kHalf), Tensor()};
  const StepCase alone = adam(grads, clones(params), {Tensor(), Tensor()});
  const StepCase beside = adam(grads, clones(params), halves);
  const StepCase none = adam(grads, clones(params), {});
  for (const StepCase* call : {&alone, &beside, &none}) run(*call);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits(beside.params()[i], alone.params()[i]));
    EXPECT_TRUE(same_bits(none.params()[i], alone.params()[i]));
  }
  EXPECT_TRUE(same_bits(halves[0], beside.params()[0].to(at::kHalf)));
}

/// Large enough that the CPU kernels use non-temporal stores for model_params at any alignment.
TEST_P(FusedStepListsTest, StreamsLargeModelParams) {
  if (!device().is_cpu()) GTEST_SKIP() << "other kernels have no such stores";
  const List params = {normal({9 << 20}), normal({11})};
  const List grads = {normal({9 << 20}, at::kHalf), normal({11})};
  const auto step = [&](const List& models) {
    StepCase call =
        make_case(StepAlgorithm::kSgd, {{}}, lists_of({grads, clones(params), models}), device());
    run(call);
    return call.params();
  };
  const List expected = step({});
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    for (const int64_t misaligned : {0, 3}) {
      const Tensor room =
          at::empty({params[0].numel() + misaligned}, params[0].options().dtype(dtype));
      const Tensor model = room.slice(0, misaligned);
      EXPECT_TRUE(same_bits(step({model, Tensor()})[0], expected[0]));
      EXPECT_TRUE(same_bits(model, expected[0].to(dtype)));
    }
  }
}

TEST_P(FusedStepListsTest, ThousandsOfTensorsInOneCall) {
  Random random(71);
  List grads, params, models;
  for (int i = 0; i < 2500; ++i) {
    params.push_back(random.normal({1 + random.below(70)}, at::kFloat, device()));
    grads.push_back(random.normal(params.back().sizes(), kDtypes[random.below(3)], device()));
    models.push_back(params.back().to(kDtypes[1 + random.below(2)]));
  }
  const StepCase call = adam(grads, params, models);
  const StepCase before = copy_of(call);
  run(call);
  expect_stepped(before, call);
}

TEST_P(FusedStepListsTest, OfNothingDoesNothing) {
  run(adam({}, {}, {}));
  const List empty = {normal({0})};
  const StepCase call = adam(empty, clones(empty), clones(empty));
  const StepCase before = copy_of(call);
  run(call);
  expect_untouched(before, call);
}

TEST_P(FusedStepListsTest, BumpsTheVersionsOfItsOutputs) {
  for (const auto algorithm : {StepAlgorithm::kAdam, StepAlgorithm::kNovoGrad}) {
    const StepCase call = make_case(algorithm, {{}}, step_lists(algorithm, 30, device()), device());
    const auto before = versions_of(call.written());
    run(call);
    const auto after = versions_of(call.written());
    for (size_t i = 0; i < before.size(); ++i) EXPECT_GT(after[i], before[i]) << i;
  }
}

TEST_P(FusedStepListsTest, WritesLeavesThatRequireGrad) {
  const List params = {normal({9}).requires_grad_()};
  const StepCase call = adam({normal({9})}, params, {});
  const Tensor before = params[0].detach().clone();
  run(call);
  EXPECT_FALSE(params[0].eq(before).any().item<bool>());
  EXPECT_TRUE(params[0].is_leaf());
}

TEST_P(FusedStepListsTest, FlushesSubnormalMoments) {
  if (kernels_are_off()) GTEST_SKIP() << "ATen keeps them";
  const List zero = {tensor_of({0, 0}, at::kFloat, device())};
  const StepCase call = adam(zero, clones(zero), {});
  for (size_t state : {2, 3}) call.all.lists[state][0].fill_(0x1.01p-126);
  run(call);
  EXPECT_TRUE(same_bits(call.all.lists[2][0], zero[0]));
  EXPECT_TRUE(same_bits(call.all.lists[3][0], zero[0]));
}

TORCHAMP_ON_EACH_DEVICE(FusedStepListsTest);

}  // namespace
}  // namespace torchamp
