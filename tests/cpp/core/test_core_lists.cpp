// core::Backward and core::Step on what the programs of mirror and languages do not draw: sparse
// grads, a reducer's memory, and grads that appear on masters.
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sparse_coo_tensor.h>

#include <cmath>

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
  Rig one_{{true, false}, device()};
  Rig other_{{true, false}, device()};
};

TEST_P(TwoTest, GradsOfMastersInABackwardThatWasNotGivenTheOptimizerAreRefusedToo) {
  for (const bool shows : {false, true}) {
    if (shows) other_.state->show_grads();
    one_.backward({});
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

TEST_P(TwoTest, GradsOfParametersThatHaveComeSinceAreRefusedToo) {
  one_.backward({});
  other_.state->let_go({other_.models[0]});
  other_.models[1] = at::ones({2}, device());  // the one that went is freed
  other_.state->add("add", other_.models[1]);
  Backward backward({one_.state}, one_.scaler, {});
  backward.prepare();
  other_.models[1].mutable_grad() = at::ones({2}, device());
  backward.finish();
  EXPECT_NE(message_of([&] { step(other_); }), "no error");
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
