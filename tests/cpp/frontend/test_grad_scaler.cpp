// GradScaler call by call: its scale, stages and state, and grads of every kind.

#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torchamp/grad_scaler.h>
#include <torchamp/optim/sgd.h>
#include <torchamp/optimizer.h>

#include <memory>
#include <sstream>
#include <type_traits>

#include "device.h"
#include "errors.h"
#include "tensors.h"

namespace torchamp {
namespace {

using at::Tensor;
using torch::optim::SGD;

class GradScalerTest : public DeviceTest {
 protected:
  static Tensor param(std::vector<double> values = {1, 2}, at::ScalarType dtype = at::kFloat) {
    return tensor_of(values, dtype, device()).set_requires_grad(true);
  }
  /// Sets every element's grad to `factor`, scaled.
  static void backward(GradScaler& scaler, const std::vector<Tensor>& params, double factor = 1) {
    for (const Tensor& each : params) {
      scaler.scale(each.to(at::kFloat).mul(factor).sum()).backward();
    }
  }
  static bool iterate(GradScaler& scaler, torch::optim::Optimizer& optimizer, bool overflow) {
    optimizer.zero_grad();
    const auto& params = optimizer.param_groups()[0].params();
    backward(scaler, params);
    if (overflow) params.back().grad().fill_(INFINITY);
    const bool stepped = scaler.step(optimizer);
    scaler.update();
    return stepped;
  }
  static bool holds(const Tensor& tensor, std::vector<double> values) {
    return same_bits(tensor.detach(), tensor_of(values, tensor.scalar_type(), device()));
  }
};

TEST_P(GradScalerTest, StaysAboveZeroAndFinite) {
  GradScaler scaler(GradScalerOptions(1).growth_interval(1));
  SGD sgd({param()}, 1.0);
  for (int step = 0; step < 140; ++step) iterate(scaler, sgd, true);
  EXPECT_EQ(scaler.get_scale(), std::numeric_limits<float>::min());
  for (int step = 0; step < 260; ++step) iterate(scaler, sgd, false);
  EXPECT_EQ(scaler.get_scale(), std::ldexp(1.0, 127));
}

TEST_P(GradScalerTest, Scales16BitOutputsInFloat32) {
  GradScaler scaler;
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const Tensor scaled = scaler.scale(tensor_of({3, 0.5}, dtype, device()));
    EXPECT_EQ(scaled.scalar_type(), dtype == at::kDouble ? at::kDouble : at::kFloat);
    EXPECT_TRUE(holds(scaled, {3 * 65536.0, 32768}));
  }
  const auto both = scaler.scale(std::vector<Tensor>{param({1}), param({2})});
  EXPECT_TRUE(holds(both[0], {65536}) && holds(both[1], {131072}));
}

/// As its other optimizers do.
TEST_P(GradScalerTest, FusedStepsLeaveUnscaledGrads) {
  GradScaler scaler(GradScalerOptions(4).device(device()));
  const Tensor wide = param(), low = param({1, 2}, at::kHalf), without_grad = param();
  optim::FusedSGD sgd({wide, low, without_grad}, optim::FusedSGDOptions(1.0));
  backward(scaler, {wide, low}, 3);
  EXPECT_TRUE(scaler.step(sgd));
  EXPECT_TRUE(holds(wide.grad(), {3, 3}) && holds(low.grad(), {3, 3}));
  EXPECT_TRUE(holds(wide, {-2, -1}) && holds(low, {-2, -1}));
}

TEST_P(GradScalerTest, FusedStepsThatAreSkippedLeaveScaledGrads) {
  GradScaler scaler(GradScalerOptions(4).device(device()));
  const Tensor weight = param(), other = param();
  optim::FusedSGD sgd({weight, other}, optim::FusedSGDOptions(1.0));
  backward(scaler, {weight, other}, 3);
  other.mutable_grad().fill_(INFINITY);
  scaler.step(sgd);
  EXPECT_TRUE(holds(weight.grad(), {12, 12}) && holds(weight, {1, 2}));
}

TEST_P(GradScalerTest, IsNoPartOfAGraph) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    GradScaler scaler(4);
    const Tensor weight = param({1, 2}, dtype);
    SGD sgd({weight}, 1.0);
    const Tensor loss = scaler.scale(weight.square().sum());
    weight.mutable_grad() = torch::autograd::grad({loss}, {weight}, {}, true, true)[0];
    const auto made_by = weight.grad().grad_fn();
    scaler.unscale_(sgd);
    EXPECT_EQ(weight.grad().grad_fn(), made_by);
    EXPECT_TRUE(holds(weight.grad(), {2, 4}));
    weight.mutable_grad().reset();  // breaks the cycle of weight, grad and graph
  }
}

TEST_P(GradScalerTest, AccumulatesOverBackwards) {
  GradScaler scaler(64);
  const Tensor weight = param();
  SGD sgd({weight}, 1.0);
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) backward(scaler, {weight});
  scaler.step(sgd);
  EXPECT_TRUE(holds(weight, {-2, -1}));
}

TEST_P(GradScalerTest, TakesGradsOfEveryKind) {
  const std::vector<Tensor> params{param({1}, at::kHalf),   param({1}), param({1}, at::kBFloat16),
                                   param({1}, at::kDouble), param({5}), param({})};
  GradScaler scaler(4);
  SGD sgd(params, 1.0);
  backward(scaler, {params.begin(), params.begin() + 4});
  params[5].mutable_grad() = at::zeros_like(params[5]);
  EXPECT_TRUE(scaler.step(sgd));
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(holds(params[i], {0})) << i;
  EXPECT_TRUE(holds(params[4], {5}));
}

TEST_P(GradScalerTest, TakesSparseGrads) {
  for (const auto dtype : {at::kFloat, at::kHalf}) {
    const Tensor weight = param({1, 2, 3}, dtype);
    GradScaler scaler(4);
    SGD sgd({weight}, 1.0);
    scaler.scale(param());
    const Tensor indices =
        torch::tensor({{0, 0, 2}}, torch::TensorOptions(device()).dtype(at::kLong));
    const auto give = [&](std::vector<double> values) {
      weight.mutable_grad() =
          at::sparse_coo_tensor(indices, tensor_of(values, dtype, device()), {3});
    };
    give({4, 8, 12});
    EXPECT_TRUE(scaler.step(sgd));
    EXPECT_TRUE(holds(weight, {-2, 2, 0}));
    scaler.update();
    give({6e4, 6e4, 12});
    EXPECT_EQ(scaler.step(sgd), dtype == at::kFloat) << "the sum overflows in float16";
  }
}

TEST_P(GradScalerTest, OneOptimizersOverflowDoesNotKeepAnotherBack) {
  for (const bool unscales : {false, true}) {
    const Tensor one = param(), two = param();
    SGD first({one}, 1.0);
    torch::optim::RMSprop second({two});
    GradScaler scaler(4);
    backward(scaler, {one, two});
    two.grad()[1].fill_(NAN);
    if (unscales) scaler.unscale_(second);
    EXPECT_TRUE(scaler.step(first));
    EXPECT_FALSE(scaler.step(second));
    EXPECT_TRUE(holds(one, {0, 1}) && holds(two, {1, 2}));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 2);
  }
}

TEST_P(GradScalerTest, ReportsWhereTheOverflowWas) {
  const std::vector<Tensor> params{param(), param(), param(), param()};
  SGD sgd(params, 1.0);
  GradScaler scaler(4);
  EXPECT_TRUE(scaler.overflowed_params(sgd).empty());
  backward(scaler, {params[0], params[1], params[3]});
  params[1].grad()[0].fill_(NAN);
  params[3].grad()[1].fill_(INFINITY);
  scaler.step(sgd);
  for (int i = 0; i < 2; ++i) {
    const auto found = scaler.overflowed_params(sgd);
    ASSERT_EQ(found.size(), 2u) << (i == 0 ? "after step" : "after update");
    EXPECT_TRUE(found[0].is_same(params[1]) && found[1].is_same(params[3]));
    if (i == 0) scaler.update();
  }
  iterate(scaler, sgd, false);
  EXPECT_TRUE(scaler.overflowed_params(sgd).empty());
}

TEST_P(GradScalerTest, RefusesCallsOutOfTurn) {
  GradScaler scaler(4);
  const Tensor weight = param();
  SGD sgd({weight}, 1.0);
  const auto unscale = [&] { scaler.unscale_(sgd); };
  const std::string one_call =
      "GradScaler::unscale_: expected one call per optimizer before each update(), and before its "
      "step(), got a ";
  EXPECT_EQ(message_of(unscale), "GradScaler::unscale_: expected scale() to be called first");
  backward(scaler, {weight});
  scaler.unscale_(sgd);
  EXPECT_EQ(message_of(unscale), one_call + "second call");
  scaler.step(sgd);
  EXPECT_EQ(message_of(unscale), one_call + "call after step()");
  EXPECT_EQ(message_of([&] { scaler.step(sgd); }),
            "GradScaler::step: expected one step per optimizer before each update(), got a second "
            "step");
  EXPECT_TRUE(holds(weight, {0, 1}));
  scaler.update();
  EXPECT_EQ(message_of([&] { scaler.update(); }),
            "GradScaler::update: expected a step() or unscale_() of an optimizer whose parameters "
            "have grads since the last update(), got none");
  sgd.zero_grad();
  EXPECT_EQ(message_of([&] { scaler.step(sgd); }),
            "GradScaler::step: expected the optimizer to have a parameter with a grad, got none");
}

TEST_P(GradScalerTest, RefusesWhatCannotScale) {
  EXPECT_EQ(message_of<c10::ValueError>([] { GradScaler(GradScalerOptions().growth_factor(1)); }),
            "GradScaler: expected growth_factor to be above 1, got 1");
  GradScaler scaler(4);
  EXPECT_EQ(message_of([&] { scaler.set_backoff_factor(1); }),
            "GradScaler: expected backoff_factor to be between 0 and 1, got 1");
  EXPECT_EQ(message_of<c10::TypeError>([&] { scaler.scale(Tensor()); }),
            "GradScaler::scale: expected outputs to be a floating-point tensor, got none");
  EXPECT_EQ(message_of<c10::ValueError>([&] { scaler.update(param()); }),
            "GradScaler::update: expected new_scale to have one element, got 2");
  EXPECT_EQ(scaler.get_scale(), 4);
}

/// initialize's optimizers convert to LibTorch's, but have their own scaler.
template <class Optimizer, class = void>
struct CanStep : std::false_type {};
template <class Optimizer>
struct CanStep<Optimizer,
               std::void_t<decltype(std::declval<GradScaler&>().step(std::declval<Optimizer&>()))>>
    : std::true_type {};
static_assert(CanStep<SGD>::value && !CanStep<Optimizer>::value);

TEST_P(GradScalerTest, TakesAUsersScale) {
  GradScaler scaler(4);
  const Tensor weight = param({0});
  SGD sgd({weight}, 1.0);
  backward(scaler, {weight});
  scaler.update(32.0);
  EXPECT_EQ(scaler.get_scale(), 32);
  scaler.update(tensor_of({64}));
  EXPECT_EQ(scaler.get_scale(), 64);
  iterate(scaler, sgd, false);
  EXPECT_TRUE(holds(weight, {-1}));
}

TEST_P(GradScalerTest, DisabledItDoesNothing) {
  GradScaler scaler(GradScalerOptions(4).device(device()).enabled(false));
  const Tensor weight = param();
  SGD sgd({weight}, 1.0);
  const Tensor loss = weight.sum();
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  loss.backward();
  scaler.unscale_(sgd);
  EXPECT_TRUE(scaler.step(sgd));
  scaler.update();
  EXPECT_TRUE(holds(weight, {0, 1}));
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_FALSE(scaler.is_enabled());
}

/// A run saved at any point resumes as if it had not been interrupted.
TEST_P(GradScalerTest, ALoadedScalerContinuesLikeTheOldOne) {
  for (const bool is_placed : {false, true}) {
    GradScaler whole(GradScalerOptions(8).growth_factor(4).backoff_factor(0.25).growth_interval(3));
    GradScaler resumed;
    SGD sgd({param()}, 1.0);
    for (int step = 0; step < 2; ++step) iterate(whole, sgd, false);
    if (is_placed) resumed.scale(param());
    std::stringstream file;
    torch::save(whole, file);
    torch::load(resumed, file);
    EXPECT_EQ(resumed.get_backoff_factor(), 0.25);
    EXPECT_EQ(resumed.get_growth_interval(), 3);
    EXPECT_EQ(resumed.get_scale(), 8);
    iterate(resumed, sgd, false);
    EXPECT_EQ(resumed.get_scale(), 32) << "the growth tracker was lost";
    iterate(resumed, sgd, true);
    EXPECT_EQ(resumed.get_scale(), 8);
  }
}

TEST_P(GradScalerTest, AnEmptyFileChangesNothing) {
  std::stringstream file;
  torch::save(GradScaler(GradScalerOptions().enabled(false)), file);
  GradScaler scaler(8);
  EXPECT_EQ(message_of([&] { torch::load(scaler, file); }),
            "GradScaler::load: expected the archive to contain \"scale\", but it is missing: the "
            "archive is damaged, or was saved by a GradScaler that is not enabled");
  EXPECT_EQ(scaler.get_scale(), 8);
}

TORCHAMP_ON_EACH_DEVICE(GradScalerTest);

}  // namespace
}  // namespace torchamp
