// Backwards that leave the update of the scale to a later one.
#include "training.h"

namespace torchamp {
namespace {

class DelaysTest : public LevelTest {
 protected:
  static ScaleLossOptions delayed() { return {0, false, /*delay_overflow_check=*/true}; }

  void backward(const ScaleLossOptions& options = {}, bool overflows = false) {
    scale_loss scaled_loss(training_.loss(), training_.optimizer(), options);
    scaled_loss.backward();
    if (overflows) training_.net->last->bias.grad().fill_(INFINITY);
  }
  double scale() { return training_.scaler().loss_scale(); }
  int64_t clean_backwards() { return training_.scaler().state().growth_tracker; }

  Training training_{device(), quiet(level()).loss_scale("dynamic")};
};

TEST_P(DelaysTest, SeveralBackwardsCountAsOne) {
  backward(delayed());
  backward(delayed());
  EXPECT_EQ(clean_backwards(), 0);
  backward();
  EXPECT_EQ(clean_backwards(), 1);
  EXPECT_TRUE(training_.optimizer().step());
}

TEST_P(DelaysTest, AnOverflowIsReportedOnceByTheLast) {
  backward(delayed(), /*overflows=*/true);
  EXPECT_EQ(scale(), 65536);
  backward();
  EXPECT_EQ(scale(), 32768);
  EXPECT_FALSE(training_.optimizer().step());
  backward();
  EXPECT_EQ(scale(), 32768);
  EXPECT_EQ(clean_backwards(), 1);
  EXPECT_TRUE(training_.optimizer().step());
}

TEST_P(DelaysTest, TheStepIsSkippedEvenWithoutAReport) {
  const auto before = clones(training_.net->parameters());
  backward(delayed(), /*overflows=*/true);
  EXPECT_FALSE(training_.optimizer().step());
  EXPECT_TRUE(same_bits(training_.net->parameters(), before));
}

TORCHAMP_AT_LEVELS(DelaysTest, OptLevel::O0, OptLevel::O1, OptLevel::O2);

}  // namespace
}  // namespace torchamp
