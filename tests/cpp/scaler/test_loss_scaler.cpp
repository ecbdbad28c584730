#include <torchamp/loss_scaler.h>

#include "device.h"
#include "errors.h"
#include "scaler/scale_snapshot.h"
#include "tensors.h"

namespace torchamp {
namespace {

using at::Tensor;

class LossScalerTest : public DeviceTest {
 protected:
  static LossScaler make(LossScalerOptions options = {}) { return LossScaler(options, device()); }
  static LossScalerOptions fixed(double scale) { return {LossScale(scale), 65536.0, {}}; }

  static void update(LossScaler& scaler, bool overflow) {
    scaler.clear_found_inf();
    if (overflow) scaler.found_inf().fill_(1);
    scaler.update();
  }
};

TEST_P(LossScalerTest, GrowsAndBacksOffBetweenItsBounds) {
  LossScalerOptions options;
  options.rule.growth_interval = 1;
  options.rule.min_scale = 1024;
  options.rule.max_scale = 1 << 20;
  LossScaler scaler = make(options);
  for (int step = 0; step < 10; ++step) update(scaler, false);
  EXPECT_EQ(scaler.loss_scale(), 1 << 20);
  for (int step = 0; step < 20; ++step) update(scaler, true);
  EXPECT_EQ(scaler.loss_scale(), 1024);
}

TEST_P(LossScalerTest, StartsAtItsCeilingIfThatIsLower) {
  LossScalerOptions options;
  options.rule.max_scale = 8;
  EXPECT_EQ(make(options).loss_scale(), 8);
}

TEST_P(LossScalerTest, RefusesBoundsThatContradictEachOther) {
  const std::pair<double, double> bounds[] = {{8, 4}, {-1, 4}, {NAN, 4}, {1, NAN}};
  for (const auto& [min_scale, max_scale] : bounds) {
    LossScalerOptions options;
    options.rule.min_scale = min_scale;
    options.rule.max_scale = max_scale;
    const std::string message = message_of([&] { make(options); });
    EXPECT_EQ(message.rfind("LossScaler: expected min_scale to be between 0 and max_scale", 0), 0U)
        << message;
  }
}

TEST_P(LossScalerTest, AFixedScaleStays) {
  LossScaler scaler = make(fixed(128));
  EXPECT_FALSE(scaler.dynamic());
  for (int step = 0; step < 3000; ++step) update(scaler, step % 7 == 0);
  EXPECT_EQ(scaler.loss_scale(), 128);
}

TEST_P(LossScalerTest, OnlyAFixedScaleOfOneChangesNothing) {
  EXPECT_TRUE(make(fixed(1)).is_identity());
  EXPECT_FALSE(make(fixed(2)).is_identity());
  LossScalerOptions dynamic_at_one;
  dynamic_at_one.init_scale = 1;
  EXPECT_FALSE(make(dynamic_at_one).is_identity());
}

TEST_P(LossScalerTest, ScalesALossOfAnyShapeAndDtypeInFloat32) {
  const LossScaler scaler = make(fixed(1024));
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const Tensor loss = tensor_of({100, 0.5}, dtype, device());
    EXPECT_TRUE(same_bits(scaler.scale(loss), tensor_of({102400, 512}, at::kFloat, device())));
    EXPECT_TRUE(same_bits(scaler.scale(loss[0]), scalar_of(102400, at::kFloat, device())));
  }
}

TEST_P(LossScalerTest, InvScaleIsASnapshot) {
  LossScaler scaler = make();
  const Tensor inv_scale = scaler.inv_scale();
  update(scaler, true);
  EXPECT_EQ(inv_scale.item<float>(), 1.0f / 65536);
  EXPECT_EQ(scaler.inv_scale().item<float>(), 1.0f / 32768);
  EXPECT_EQ(inv_scale.device(), scaler.device());
}

TEST_P(LossScalerTest, OneThatWasMovedFromSaysSo) {
  LossScaler scaler = make();
  const LossScaler taker = std::move(scaler);
  EXPECT_EQ(taker.loss_scale(), 65536);
  EXPECT_TRUE(scaler.was_moved_from());
  EXPECT_EQ(message_of([&] { scaler.update(); }),
            "LossScaler: expected a scaler that holds its scale, got one that was moved from");
}

TEST_P(LossScalerTest, AScaleSnapshotIsCopiedOnceTheScaleMoves) {
  LossScaler scaler = make();
  const auto snapshot = scaler.snapshot(), mine = scaler.snapshot();
  const auto is_copy = [&](const ScaleSnapshot& scale) {
    return !scale.loss_scale().is_alias_of(scaler.loss_scale_tensor());
  };
  EXPECT_FALSE(is_copy(*snapshot));
  scaler.about_to_move(mine.get());
  EXPECT_TRUE(is_copy(*snapshot));
  EXPECT_FALSE(is_copy(*mine)) << "its backward ends with the move";
  update(scaler, true);
  EXPECT_EQ(snapshot->loss_scale().item<float>(), 65536);
  EXPECT_EQ(scaler.snapshot()->loss_scale().item<float>(), 32768);
}

TEST_P(LossScalerTest, AGraphKeepsTheScaleThatItWasScaledBy) {
  LossScaler scaler = make();
  const Tensor x = tensor_of({2}, at::kFloat, device()).set_requires_grad(true);
  const auto snapshot = scaler.snapshot();
  const Tensor before = scaler.scale(x.sum(), *snapshot);
  const Tensor ended = scaler.scale(x.sum(), *scaler.snapshot());
  scaler.about_to_move(snapshot.get());
  update(scaler, true);
  for (const Tensor& scaled : {before, ended}) {
    x.mutable_grad().reset();
    scaled.backward();
    EXPECT_EQ(x.grad().item<float>(), 65536);
  }
}

TEST_P(LossScalerTest, FoundInfIsANewOneForEachBackward) {
  LossScaler scaler = make();
  scaler.found_inf().fill_(1);
  const Tensor before = scaler.found_inf();
  scaler.clear_found_inf();
  EXPECT_EQ(before.item<float>(), 1) << "who kept the last one's sees it";
  EXPECT_EQ(scaler.found_inf().item<float>(), 0);
}

/// A run saved at any point resumes as if it had not been interrupted.
TEST_P(LossScalerTest, ALoadedStateContinuesLikeTheOldOne) {
  LossScalerOptions options;
  options.rule.growth_interval = 5;
  LossScaler whole = make(options);
  Random random(31);
  for (int saved = 0; saved < 20; ++saved) {
    LossScaler resumed = make(options);
    resumed.load_state(whole.state());
    for (int step = 0; step < 16; ++step) {
      const bool overflow = random.below(3) == 0;
      for (LossScaler* each : {&whole, &resumed}) update(*each, overflow);
      ASSERT_EQ(resumed.state().loss_scale, whole.state().loss_scale);
      ASSERT_EQ(resumed.state().growth_tracker, whole.state().growth_tracker);
    }
  }
}

TEST_P(LossScalerTest, SettingAFixedScaleUpdatesIsIdentity) {
  LossScaler scaler = make(fixed(128));
  scaler.set_loss_scale(1);
  EXPECT_TRUE(scaler.is_identity());
  LossScaler dynamic = make();
  dynamic.set_loss_scale(1);
  EXPECT_TRUE(dynamic.dynamic());
  EXPECT_EQ(dynamic.loss_scale(), 1);
}

TEST_P(LossScalerTest, RefusesWhatCannotScale) {
  EXPECT_EQ(message_of([] { make(fixed(0)); }),
            "LossScaler: expected the initial scale to be positive and finite, got 0");
  LossScaler scaler = make();
  EXPECT_EQ(message_of<c10::ValueError>([&] { scaler.set_loss_scale(-2); }),
            "set_loss_scale: expected value to be positive and finite, got -2");
  EXPECT_EQ(message_of([&] { scaler.set_loss_scale(INFINITY); }),
            "set_loss_scale: expected value to be positive and finite, got inf");
  EXPECT_EQ(scaler.loss_scale(), 65536);
  EXPECT_EQ(message_of([&] { scaler.scale(Tensor()); }),
            "scale_loss: expected loss to be a floating-point tensor, got none");
  EXPECT_TRUE(contains(message_of([&] { scaler.scale(scalar_of(1, at::kLong, device())); }),
                       "scale_loss: expected loss to be a floating-point tensor, got "));
}

TORCHAMP_ON_EACH_DEVICE(LossScalerTest);

}  // namespace
}  // namespace torchamp
