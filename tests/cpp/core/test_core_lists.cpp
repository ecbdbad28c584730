// core::Backward and core::Step on several parameters, and by sparse grads.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <cmath>

#include "clip/clip.h"
#include "core/backward.h"
#include "core/step.h"
#include "device.h"
#include "errors.h"
#include "tensors.h"

namespace torchamp::core {
namespace {

using at::Tensor;

constexpr double kScale = 1024;

/// float16 parameters with masters, and float32 ones without.
struct Rig {
  Rig(const std::vector<bool>& have_masters, at::Device device)
      : scaler({LossScale("dynamic"), kScale, {}}, device) {
    for (const bool has_master : have_masters) {
      const Tensor wide = Random(40).normal({4, 2}, at::kFloat, device);
      models.push_back(has_master ? wide.to(at::kHalf) : wide);
      state->add("Rig", models.back(), wide);
    }
  }

  /// `grads`: scaled; undefined: none.
  void backward(const std::vector<Tensor>& grads, const BackwardOptions& options = {}) {
    Backward backward({state}, scaler, options);
    backward.prepare();
    give(grads);
    backward.finish();
  }
  void give(const std::vector<Tensor>& grads) const {
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined()) models[i].mutable_grad() = grads[i];
    }
  }
  Tensor grad(size_t i) const {
    const Param& param = *state->params()[i];
    return param.grad.is_usable() ? param.model.grad() : Tensor();
  }

  std::vector<Tensor> models;
  std::shared_ptr<OptimizerState> state = std::make_shared<OptimizerState>();
  LossScaler scaler;
};

/// A scaled grad per parameter.
std::vector<Tensor> grads(const Rig& rig, double value) {
  std::vector<Tensor> all;
  for (const Tensor& model : rig.models) all.push_back(model.new_full({4, 2}, value * kScale));
  return all;
}

/// A step that writes nothing.
void step(Rig& rig) {
  Step step(rig.state, {&rig.scaler}, /*writes_model=*/false);
  step.begin("step");
  step.finish();
}

class ListsTest : public DeviceTest {
 protected:
  static Tensor filled(double value) {
    return tensor_of(std::vector<double>(8, value), at::kFloat, device()).view({4, 2});
  }

  Rig rig_{{true, false, true}, device()};
};

TEST_P(ListsTest, AParameterThatGetsNoGradKeepsWhatItHad) {
  for (const bool lazy : {false, true}) {
    for (const bool delays : {false, true}) {
      Rig rig({true, false, true}, device());
      rig.state->grads().one_pass().switch_to(lazy);
      rig.backward(grads(rig, 5));
      rig.backward({grads(rig, 1)[0], {}, {}}, {0, delays, false});
      rig.backward({});
      EXPECT_TRUE(same_bits(rig.grad(0), filled(6)));
      EXPECT_TRUE(same_bits(rig.grad(1), filled(5)));
      EXPECT_TRUE(same_bits(rig.grad(2), filled(5)));
    }
  }
}

TEST_P(ListsTest, CancelPutsTheVeryTensorsBack) {
  rig_.backward(grads(rig_, 5));
  std::vector<Tensor> before;
  for (const Tensor& model : rig_.models) before.push_back(model.grad());
  Backward backward({rig_.state}, rig_.scaler, {});
  backward.prepare();
  for (const Tensor& model : rig_.models) EXPECT_FALSE(model.grad().defined());
  rig_.give(grads(rig_, 7));
  backward.cancel();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(rig_.models[i].grad().is_same(before[i])) << i;
    EXPECT_TRUE(same_bits(rig_.grad(i), filled(5))) << i;
  }
}

TEST_P(ListsTest, MastersShowTheModelsGradsOnceAsked) {
  rig_.backward(grads(rig_, 5));
  for (const bool asked : {false, true}) {
    if (asked) rig_.state->show_grads();
    for (const auto& param : rig_.state->params()) {
      const bool shows = asked || !param->has_master();
      EXPECT_EQ(param->model.grad().is_same(param->master.grad()), shows);
      EXPECT_EQ(param->model.grad().scalar_type(), at::kFloat);
    }
  }
}

TEST_P(ListsTest, TakesGradsOfBackwardsThatItDidNotSee) {
  rig_.give(grads(rig_, 5));
  Backward backward({rig_.state}, rig_.scaler, {});
  backward.take_grads();
  backward.finish();
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(rig_.grad(i), filled(5))) << i;
  Backward again({rig_.state}, rig_.scaler, {});
  EXPECT_EQ(message_of([&] { again.take_grads(); }),
            "finish: expected grads of backwards since the last finish, got some that it has "
            "unscaled; call the optimizer's zero_grad() before the backwards of a step");
}

/// As after an exception.
TEST_P(ListsTest, AStepThatDoesNotFinishLeavesModelAndMasterAlike) {
  const at::NoGradGuard no_grad;
  rig_.backward(grads(rig_, 5));
  const Param& param = *rig_.state->params()[0];
  const Tensor expected = param.master.sub(5);
  {
    Step step(rig_.state, {&rig_.scaler}, /*writes_model=*/false);
    step.begin("step");
    Tensor(param.model).sub_(param.model.grad());
  }
  EXPECT_TRUE(same_bits(param.master, expected));
  EXPECT_TRUE(param.is_rounded_master());
  EXPECT_TRUE(same_bits(rig_.grad(0), filled(5)));
}

TEST_P(ListsTest, AfterAStepMastersHaveNoGradsAndTheNextBackwardStartsAnew) {
  rig_.backward(grads(rig_, 5));
  step(rig_);
  for (const size_t i : {0, 2}) EXPECT_FALSE(rig_.state->params()[i]->master.grad().defined());
  EXPECT_TRUE(same_bits(rig_.grad(1), filled(5)));
  rig_.backward(grads(rig_, 1));
  EXPECT_TRUE(same_bits(rig_.grad(0), filled(1)));
  EXPECT_TRUE(same_bits(rig_.grad(1), filled(6))) << "not zeroed, as in PyTorch";
}

TEST_P(ListsTest, ABackwardFindsScaledGradsInPlace) {
  rig_.backward(grads(rig_, 3), {0, /*delay_unscale=*/true});
  const Tensor before = rig_.models[0].grad();
  Backward backward({rig_.state}, rig_.scaler, {});
  backward.prepare();
  EXPECT_TRUE(rig_.models[0].grad().is_same(before)) << "a reducer reduces the sum";
}

/// As those of DistributedDataParallel with gradient_as_bucket_view.
TEST_P(ListsTest, GradsInAReducersMemoryAreCopiedBeforeItWritesMore) {
  const Tensor bucket = filled(0).repeat({2, 1}), grad = bucket.narrow(0, 0, 4);
  for (const double value : {3.0, 4.0}) {
    Backward backward({rig_.state}, rig_.scaler, {});
    backward.prepare();
    bucket.fill_(value * kScale);
    rig_.give({Tensor(), grad});
    backward.finish();
  }
  EXPECT_TRUE(same_bits(rig_.grad(1), filled(7)));
}

TEST_P(ListsTest, GradsOfAnotherLossAreRefusedAndLeftOut) {
  rig_.backward(grads(rig_, 5));
  Backward backward({rig_.state}, rig_.scaler, {});
  backward.scale(filled(1).set_requires_grad(true));
  backward.prepare();
  rig_.give(grads(rig_, 7));
  EXPECT_EQ(message_of([&] { backward.finish(); }),
            "scale_loss: expected the backward of the scaled loss, got grads of another loss, "
            "which must not be unscaled; call scaled_loss.backward()");
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(rig_.grad(i), filled(5))) << i;
}

TEST_P(ListsTest, ABackwardMovesTheScale) {
  rig_.backward(grads(rig_, 5));
  EXPECT_EQ(rig_.scaler.state().growth_tracker, 1);
  rig_.backward({{}, {}, grads(rig_, INFINITY)[2]});
  EXPECT_EQ(rig_.scaler.state().growth_tracker, 0);
  EXPECT_EQ(rig_.scaler.loss_scale(), kScale / 2);
}

/// Whether their grads stay scaled, or their overflow alone waits.
TEST_P(ListsTest, BackwardsThatDelayTheMoveOfTheScaleMoveItOnceInTheNext) {
  for (const bool delays_unscale : {true, false}) {
    Rig rig({true, false, true}, device());
    const BackwardOptions delayed{0, delays_unscale, !delays_unscale};
    rig.backward(grads(rig, INFINITY), delayed);
    EXPECT_EQ(rig.scaler.loss_scale(), kScale);
    EXPECT_EQ(rig.state->overflows().any(), !delays_unscale);
    rig.scaler.set_loss_scale(kScale * 4);
    rig.backward(grads(rig, 1));
    EXPECT_EQ(rig.scaler.loss_scale(), kScale * 2);
    EXPECT_TRUE(rig.state->overflows().any());
    rig.state->note_zeroed();
    rig.backward(grads(rig, 1), delayed);
    rig.backward(grads(rig, 1));
    EXPECT_EQ(rig.scaler.loss_scale(), kScale * 2);
    EXPECT_EQ(rig.scaler.state().growth_tracker, 1);
    EXPECT_FALSE(rig.state->overflows().any());
  }
}

TEST_P(ListsTest, AParameterTakesItsOverflowAlongAndReturnsToItsMasterWithoutAGrad) {
  const Tensor master = rig_.state->params()[0]->master;
  rig_.backward({grads(rig_, INFINITY)[0], grads(rig_, 5)[1], grads(rig_, 5)[2]});
  rig_.state->let_go({rig_.models[1], rig_.models[2]});
  EXPECT_FALSE(rig_.state->overflows().any());
  rig_.give({grads(rig_, 7)[0]});
  rig_.state->add("add", rig_.models[0]);
  EXPECT_TRUE(rig_.state->params()[2]->master.is_same(master));
  EXPECT_FALSE(rig_.models[0].grad().defined());
}

TORCHAMP_ON_EACH_DEVICE(ListsTest);

/// Two optimizers of one loss scale.
class TwoTest : public DeviceTest {
 protected:
  /// Of both, by scaled grads; undefined: none.
  void backward(const std::vector<Tensor>& of_one, const std::vector<Tensor>& of_other) {
    Backward backward({one_.state, other_.state}, one_.scaler, {});
    backward.prepare();
    one_.give(of_one);
    other_.give(of_other);
    backward.finish();
  }
  double clipped_norm() {
    return clip_grad_norm({one_.state.get(), other_.state.get()}, 1).item<double>();
  }

  Rig one_{{true, false}, device()};
  Rig other_{{true, false}, device()};
};

TEST_P(TwoTest, AnOverflowOfOneSkipsBoth) {
  backward(grads(one_, 5), grads(other_, INFINITY));
  EXPECT_TRUE(one_.state->overflows().any());
  EXPECT_TRUE(other_.state->overflows().any());
}

TEST_P(TwoTest, AnOverflowWithoutGradsIsClearedByAZeroingAndByAStep) {
  for (const bool zeroes : {true, false}) {
    backward({}, grads(other_, INFINITY));
    EXPECT_TRUE(one_.state->overflows().any());
    zeroes ? one_.state->note_zeroed() : step(one_);
    EXPECT_FALSE(one_.state->overflows().any());
    EXPECT_TRUE(other_.state->overflows().any());
    other_.state->note_zeroed();
  }
}

TEST_P(TwoTest, ClippingLeavesOutGradsThatOnlySkippedStepsUse) {
  one_.backward(grads(one_, 5));
  other_.backward(grads(other_, INFINITY));
  EXPECT_NEAR(clipped_norm(), 20, 1e-3);
  EXPECT_NEAR(one_.grad(0).norm().item<double>(), std::sqrt(0.5), 1e-3);
  one_.backward(grads(one_, INFINITY));
  EXPECT_FALSE(std::isfinite(clipped_norm())) << "both are to skip";
}

TEST_P(TwoTest, TheNormOfGradsThatAnotherOnesOverflowSkipsIsNotFinite) {
  backward(grads(one_, 5), grads(other_, INFINITY));
  EXPECT_FALSE(std::isfinite(clip_grad_norm({one_.state.get()}, 1).item<double>()));
}

TEST_P(TwoTest, GradsOfABackwardThatWasNotGivenTheOptimizerAreRefused) {
  const auto leave_out_the_other = [&] {
    Backward backward({one_.state}, one_.scaler, {});
    backward.prepare();
    one_.give(grads(one_, 5));
    other_.give(grads(other_, 5));
    backward.finish();
  };
  const std::string refusal =
      ": expected grads of backwards in scale_loss's that were given this optimizer, got one, of "
      "sizes [4, 2], of a scale_loss that was not; give it all optimizers whose parameters its "
      "loss reaches, or zero their grads before their own backward";
  leave_out_the_other();
  EXPECT_EQ(message_of([&] { step(other_); }), "step" + refusal);
  EXPECT_EQ(message_of([&] { clipped_norm(); }), "clip_grad_norm_" + refusal);
  other_.backward(grads(other_, 1));
  EXPECT_TRUE(same_bits(other_.grad(0), one_.grad(0).div(5)))
      << "set aside, as its master has none";
  EXPECT_EQ(message_of([&] { step(other_); }), "step" + refusal) << "it was added to the other";
  other_.state->note_zeroed();
  EXPECT_EQ(message_of([&] { step(other_); }), "no error");
}

TEST_P(TwoTest, GradsOfMastersInABackwardThatWasNotGivenTheOptimizerAreRefusedToo) {
  for (const bool shows : {false, true}) {
    if (shows) other_.state->show_grads();
    Backward backward({one_.state}, one_.scaler, {});
    backward.prepare();
    const Tensor master = other_.state->params()[0]->master;
    master.mutable_grad() = at::full_like(master, 5 * kScale);
    backward.finish();
    EXPECT_NE(message_of([&] { step(other_); }), "no error");
    other_.state->note_zeroed();
    EXPECT_FALSE(master.grad().defined());
    EXPECT_EQ(message_of([&] { step(other_); }), "no error");
  }
}

TEST_P(TwoTest, DelayedGradsOfMastersAreNoGradsOfTheNextLoss) {
  const Tensor master = one_.state->params()[0]->master;
  Backward first({one_.state}, one_.scaler, {0, /*delay_unscale=*/true, false});
  first.prepare();
  master.mutable_grad() = at::full_like(master, 5 * kScale);
  first.finish();
  Backward second({one_.state}, one_.scaler, {});
  second.scale(at::ones({}, one_.scaler.loss_scale_tensor().options()).set_requires_grad(true));
  second.prepare();
  EXPECT_EQ(message_of([&] { second.finish(); }), "no error");
  EXPECT_TRUE(same_bits(one_.grad(0), at::full_like(master, 5)));
}

/// Without masters.
TEST_P(TwoTest, ClippingOfOneThatIsToSkipLeavesWhatItShares) {
  other_.state->add("add", one_.models[1]);
  one_.backward({grads(one_, INFINITY)[0], grads(one_, 5)[1]});
  EXPECT_FALSE(other_.state->overflows().any());
  EXPECT_FALSE(std::isfinite(clip_grad_norm({one_.state.get()}, 1).item<double>()));
  EXPECT_TRUE(one_.grad(1).eq(5).all().item<bool>());
}

/// Without masters.
TEST_P(TwoTest, OfASharedParameterAnOverflowSkipsBothUntilItIsZeroed) {
  other_.state->add("add", one_.models[1]);
  one_.backward(grads(one_, INFINITY));
  EXPECT_TRUE(other_.state->overflows().any());
  one_.state->note_zeroed();
  EXPECT_FALSE(other_.state->overflows().any());
  one_.backward({grads(one_, INFINITY)[0], grads(one_, 5)[1]});
  EXPECT_FALSE(other_.state->overflows().any()) << "it was not in the shared one";
}

TORCHAMP_ON_EACH_DEVICE(TwoTest);

class SparseTest : public ::testing::TestWithParam<std::tuple<at::Device, bool>> {
 protected:
  static at::Device device() { return std::get<0>(GetParam()); }
  /// A scaled grad with rows 3, 1 and 3 again: coalesced, it is 1, 0, and 2·value.
  Tensor sparse(double value) const {
    const Tensor rows = tensor_of({3, 1, 3}, at::kLong, device()).view({1, 3});
    const Tensor values = tensor_of({value, 0, 1, 1, value, 0}, at::kFloat, device()).view({3, 2});
    return at::sparse_coo_tensor(rows, values.mul(kScale).to(rig_.models[0].scalar_type()), {4, 2});
  }
  Tensor dense(double value) const { return rig_.models[0].new_full({4, 2}, value * kScale); }
  /// `base` everywhere, plus the unscaled sparse(value) in rows 1 and 3.
  static Tensor expected(double value, double base = 0) {
    const double b = base;
    return tensor_of({b, b, 1 + b, 1 + b, b, b, 2 * value + b, b}, at::kFloat, device())
        .view({4, 2});
  }
  void backward(const Tensor& grad) { rig_.backward({grad}); }

  Rig rig_{{std::get<1>(GetParam())}, device()};
};

TEST_P(SparseTest, StaysSparse) {
  rig_.state->grads().one_pass().switch_to(true);
  backward(sparse(3));
  EXPECT_TRUE(rig_.grad(0).is_sparse());
  EXPECT_EQ(rig_.grad(0).scalar_type(), at::kFloat);
  EXPECT_TRUE(same_bits(rig_.grad(0).to_dense(), expected(3)));
  EXPECT_FALSE(rig_.state->overflows().any());
}

TEST_P(SparseTest, AddsUpWithSparseAndDense) {
  backward(sparse(3));
  backward(sparse(4));
  EXPECT_TRUE(same_bits(rig_.grad(0).to_dense(), expected(3).add(expected(4))));
  backward(dense(7));
  EXPECT_TRUE(same_bits(rig_.grad(0).to_dense(), expected(3).add(expected(4, 7))));
  backward(sparse(1));
  EXPECT_TRUE(same_bits(rig_.grad(0).to_dense(), expected(3).add(expected(4, 7)).add(expected(1))));
}

TEST_P(SparseTest, IsChecked) {
  backward(sparse(INFINITY));
  EXPECT_TRUE(rig_.state->overflows().any());
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<at::Device, bool>>& info) {
  return std::string(std::get<0>(info.param).is_cuda() ? "cuda" : "cpu") +
         (std::get<1>(info.param) ? "_with_master" : "_without_master");
}

INSTANTIATE_TEST_SUITE_P(On, SparseTest,
                         ::testing::Combine(::testing::ValuesIn(devices()), ::testing::Bool()),
                         case_name);

}  // namespace
}  // namespace torchamp::core
