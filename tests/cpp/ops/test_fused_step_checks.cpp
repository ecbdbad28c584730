// Error messages of fused_step for invalid arguments, after which nothing has changed.
#include <ATen/ops/zeros.h>

#include <functional>

#include "device.h"
#include "errors.h"
#include "step_case.h"

namespace torchamp {
namespace {

using at::Tensor;

class FusedStepChecksTest : public DeviceTest {
 protected:
  static StepCase make(StepAlgorithm algorithm) {
    Lists all;
    all.names.resize(2);
    for (int64_t list = 0; list < 3 + states_of(algorithm); ++list) {
      all.lists.push_back({normal({2, 3}), normal({4})});
    }
    return make_case(algorithm, {{}}, std::move(all), device());
  }
  static Tensor normal(at::IntArrayRef sizes) {
    return Random(100).normal(sizes, at::kFloat, device());
  }
  static Tensor floats(int64_t length) {
    return at::zeros({length}, at::TensorOptions().device(device()));
  }
  static std::string here() { return floats(1).device().str(); }
};

/// A call changed by `spoil` throws `message` and steps nothing.
void expect_refused(StepCase call, const std::string& message,
                    const std::function<void(StepCase&)>& spoil) {
  const StepCase whole = call;
  const StepCase before = copy_of(call);
  spoil(call);
  EXPECT_EQ(message_of([&] { run(call); }), "fused_step: expected " + message);
  expect_untouched(before, whole);
}

using Algorithm = StepAlgorithm;

TEST_P(FusedStepChecksTest, ListsOfTheWrongLength) {
  const StepCase adam = make(Algorithm::kAdam);
  expect_refused(adam, "params to have as many tensors as grads, 2, got 1",
                 [](StepCase& call) { call.all.lists[1].pop_back(); });
  expect_refused(adam, "states to have 2 tensors per position, 4, got 3",
                 [](StepCase& call) { call.all.lists[3].pop_back(); });
  expect_refused(adam, "model_params to have as many tensors as grads, 2, got 1",
                 [](StepCase& call) { call.all.lists[4].pop_back(); });
  expect_refused(make(Algorithm::kSgd), "states to have 0 tensors per position, 0, got 2",
                 [](StepCase& call) { call.all.lists.push_back(call.all.lists[1]); });
}

TEST_P(FusedStepChecksTest, TensorsThatDoNotMatch) {
  const StepCase adam = make(Algorithm::kAdam);
  expect_refused(adam, "params[1] to have the sizes of grads[1], [4], got [5]",
                 [](StepCase& call) { call.all.lists[1][1] = normal({5}); });
  expect_refused(adam, "states[3] to have the sizes of grads[1], [4], got [5]",
                 [](StepCase& call) { call.all.lists[3][1] = normal({5}); });
  expect_refused(adam, "model_params[1] to have the sizes of grads[1], [4], got [2, 2]",
                 [](StepCase& call) {
                   call.all.lists[4][1] = normal({2, 2});
                 });
  expect_refused(adam, "states[0] to be float16, bfloat16, float32 or float64, got Int",
                 [](StepCase& call) {
                   call.all.lists[2][0] = normal({2, 3}).to(at::kInt);
                 });
  expect_refused(adam, "grads[0] to be dense, got layout Sparse", [](StepCase& call) {
    call.all.lists[0][0] = normal({2, 3}).to_sparse();
  });
  expect_refused(adam, "model_params[1] to be on " + here() + ", got meta",
                 [](StepCase& call) { call.all.lists[4][1] = normal({4}).to(at::kMeta); });
}

TEST_P(FusedStepChecksTest, RowsOfTheWrongKind) {
  const StepCase adam = make(Algorithm::kAdam);
  expect_refused(adam, "steps to be a tensor, got none",
                 [](StepCase& call) { call.scalars.steps = Tensor(); });
  expect_refused(adam, "steps to be contiguous Float, got Double",
                 [](StepCase& call) { call.scalars.steps = floats(2).to(at::kDouble); });
  expect_refused(adam, "steps to have one element per position, 2, got 3",
                 [](StepCase& call) { call.scalars.steps = floats(3); });
  expect_refused(adam, "groups to be contiguous Int, got Long",
                 [](StepCase& call) { call.scalars.groups = floats(2).to(at::kLong); });
  expect_refused(adam, "groups to be on cpu, got meta",
                 [](StepCase& call) { call.scalars.groups = call.scalars.groups.to(at::kMeta); });
  expect_refused(adam, "groups[1] to be a row index of hyper, below 1, got 1",
                 [](StepCase& call) { call.scalars.groups.select(0, 1).fill_(1); });
  expect_refused(adam, "hyper to be contiguous Double, got Float",
                 [](StepCase& call) { call.scalars.hyper = call.scalars.hyper.to(at::kFloat); });
  expect_refused(adam, "hyper to have sizes [groups, 12], got [1, 8]", [](StepCase& call) {
    call.scalars.hyper = call.scalars.hyper.slice(1, 0, 8).contiguous();
  });
  expect_refused(adam, "hyper to be on " + here() + ", got meta",
                 [](StepCase& call) { call.scalars.hyper = call.scalars.hyper.to(at::kMeta); });
}

TEST_P(FusedStepChecksTest, LearningRatesOfTheWrongKind) {
  const StepCase adam = make(Algorithm::kAdam);
  const std::vector<at::Tensor> half = {scalar_of(1, at::kHalf, device())};
  expect_refused(adam, "lrs to be Float, got Half",
                 [&](StepCase& call) { call.scalars.lrs = half; });
  const std::vector<at::Tensor> two(2);
  expect_refused(adam, "lrs to have one tensor per group, 1, got 2",
                 [&](StepCase& call) { call.scalars.lrs = two; });
}

TEST_P(FusedStepChecksTest, ScalarsOfTheWrongKind) {
  const StepCase adam = make(Algorithm::kAdam);
  expect_refused(adam, "grad_factor to be Float, got Double", [](StepCase& call) {
    call.scalars.grad_factor = scalar_of(1, at::kDouble, device());
  });
  expect_refused(adam, "skip to have one element, got sizes [2]",
                 [](StepCase& call) { call.scalars.skip = floats(2); });
  expect_refused(adam, "skip to be on " + here() + ", got meta",
                 [](StepCase& call) { call.scalars.skip = floats(1).to(at::kMeta); });
  expect_refused(adam, "ticket to be Int, got Float",
                 [](StepCase& call) { call.scalars.ticket = floats(1); });
  expect_refused(adam, "unscaled[1] to be an index of the lists, below 2, got 2",
                 [](StepCase& call) {
                   call.unscaled = {0, 2};
                 });
}

TEST_P(FusedStepChecksTest, NormsThatAnAlgorithmNeeds) {
  const StepCase novo_grad = make(Algorithm::kNovoGrad), lamb = make(Algorithm::kLambApply);
  expect_refused(novo_grad, "update_norms to be a tensor for this algorithm, got none",
                 [](StepCase& call) { call.scalars.update_norms.reset(); });
  expect_refused(novo_grad, "norm_averages to be a tensor for this algorithm, got none",
                 [](StepCase& call) { call.scalars.norm_averages.reset(); });
  expect_refused(lamb, "param_norms to be a tensor for this algorithm, got none",
                 [](StepCase& call) { call.scalars.param_norms.reset(); });
  expect_refused(lamb, "update_norms to be a tensor for this algorithm, got none",
                 [](StepCase& call) { call.scalars.update_norms.reset(); });
  expect_refused(lamb, "param_norms to have one element per position, 2, got 1",
                 [](StepCase& call) { call.scalars.param_norms = floats(1); });
}

TEST_P(FusedStepChecksTest, KnowsHowManyStatesThereAre) {
  EXPECT_EQ(states_of(Algorithm::kAdam), 2);
  EXPECT_EQ(states_of(Algorithm::kSgd), 0);
  EXPECT_EQ(states_of(Algorithm::kMomentum), 1);
  EXPECT_EQ(states_of(Algorithm::kNovoGrad), 1);
  EXPECT_EQ(states_of(Algorithm::kLambUpdate), 3);
  EXPECT_EQ(states_of(Algorithm::kLambApply), 0);
}

TORCHAMP_ON_EACH_DEVICE(FusedStepChecksTest);

TEST(Meta, FusedStepPassesShapesThrough) {
  Lists all;
  all.names.resize(1);
  all.lists.assign(4, {at::zeros({2, 3}, at::TensorOptions().device(at::kMeta))});
  const StepCase call = make_case(Algorithm::kMomentum, {{}}, std::move(all), at::kMeta);
  const int64_t before = call.params()[0]._version();
  run(call);
  EXPECT_EQ(call.params()[0].sizes(), (at::IntArrayRef{2, 3}));
  EXPECT_GT(call.params()[0]._version(), before);
}

}  // namespace
}  // namespace torchamp
