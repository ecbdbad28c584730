// Late reports, which simulate a device that is behind the host.
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "errors.h"
#include "math/report.h"
#include "ops/backward_report.h"
#include "telemetry/late_report.h"
#include "telemetry/skip_messages.h"

namespace torchamp {
namespace {

using Taken = std::shared_ptr<BackwardReport>;

Taken take() {
  return acquire_report(at::kCPU);
}

std::vector<std::string> texts_of(const SkippedStep& step,
                                  const std::vector<std::string>& names = {}) {
  std::vector<std::string> texts;
  for (const LogMessage& message : messages_of(step, names)) texts.push_back(message.text);
  return texts;
}

/// Writes a report, as the last pass of a backward does.
void arrive(const BackwardReport& report, bool found, float loss_scale = 1.0f,
            std::vector<uint8> per_tensor = {}) {
  Report& memory = *static_cast<Report*>(report.bytes().mutable_data_ptr());
  name_positions(memory, per_tensor.data(), static_cast<int32>(per_tensor.size()));
  publish(memory, packed_outcome(found ? kOverflowed : kClean, loss_scale));
}

/// One optimizer's steps under a dynamic scale for each loss.
class Steps {
 public:
  explicit Steps(int64_t losses = 1) {
    for (int64_t i = 0; i < losses; ++i) scalers_.push_back(&owned_.emplace_back());
  }

  /// A backward that the device has not finished.
  Taken backward(int64_t loss_id = 0) {
    const Taken taken = take();
    LossScaler& scaler = *scalers_[loss_id];
    scaler.end_backward(scaler.found_inf(), /*moved=*/true, taken);
    report_.after_backward({loss_id, taken, taken});
    return taken;
  }
  void step() { report_.after_step(scalers_); }
  const Telemetry& known() { return report_.known(); }

  std::deque<LossScaler> owned_;
  std::vector<LossScaler*> scalers_;
  LateReport report_;
};

TEST(BackwardReportTest, SaysWhatWasWritten) {
  const Taken report = take();
  EXPECT_FALSE(report->has_arrived());
  arrive(*report, true, 512.0f, {0, 1, 0, 1, 1, 1});
  EXPECT_TRUE(report->has_arrived() && report->found_inf());
  EXPECT_EQ(report->loss_scale(), 512.0f);
  EXPECT_EQ(report->nonfinite(), 4);
  EXPECT_EQ(report->first_nonfinite(), (std::vector<int64_t>{1, 3, 4}));
}

TEST(BackwardReportTest, NamesAreThoseOfAnOverflow) {
  const Taken report = take();
  arrive(*report, false, 2.0f, {1});
  EXPECT_TRUE(report->has_arrived());
  EXPECT_FALSE(report->found_inf());
  EXPECT_TRUE(report->first_nonfinite().empty());
}

TEST(BackwardReportTest, IsReusedOnceItHasArrivedAndIsReleased) {
  const Taken held = take();
  arrive(*held, false);
  Taken pending = take();
  const BackwardReport *held_still = held.get(), *to_be_written = pending.get();
  pending.reset();
  std::set<const BackwardReport*> seen;
  for (int i = 0; i < 100000; ++i) {
    const Taken report = take();
    EXPECT_FALSE(report->has_arrived());
    seen.insert(report.get());
    arrive(*report, true);
  }
  EXPECT_EQ(seen.count(held_still) + seen.count(to_be_written), 0u);
  EXPECT_LT(seen.size(), 100000u);
  EXPECT_TRUE(held->has_arrived());
}

TEST(BackwardReportTest, ThreadsShareNone) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 2000; ++i) {
        const Taken mine = take();
        arrive(*mine, false, static_cast<float>(2000 * t + i));
        EXPECT_EQ(mine->loss_scale(), 2000 * t + i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(BackwardReportTest, NamesAreThereBeforeTheOutcome) {
  for (int i = 1; i < 2000; ++i) {
    const Taken report = take();
    std::thread device([&] { arrive(*report, true, 1.0f, std::vector<uint8>(i % 3 + 1, 1)); });
    while (!report->has_arrived()) std::this_thread::yield();
    EXPECT_EQ(report->nonfinite(), i % 3 + 1);
    EXPECT_EQ(report->first_nonfinite().back(), i % 3);
    device.join();
  }
}

TEST(LateReportTest, NothingIsKnownBeforeItHasArrived) {
  Steps steps;
  const Taken backward = steps.backward();
  steps.step();
  EXPECT_TRUE(steps.report_.flush().empty());
  EXPECT_EQ(steps.known().steps, 0);
  arrive(*backward, true, 128.0f, {0, 1});
  const auto skipped = steps.report_.flush();
  ASSERT_EQ(skipped.size(), 1u);
  EXPECT_EQ(skipped[0].overflows.at(0).loss_id, 0);
  EXPECT_EQ(skipped[0].overflows.at(0).loss_scale, 128.0);
  EXPECT_EQ(skipped[0].first, std::vector<int64_t>{1});
  EXPECT_EQ(steps.known().skipped_steps, 1);
  EXPECT_EQ(steps.known().loss_scales, std::vector<double>{128.0});
}

TEST(LateReportTest, TheHostMayBeAnyNumberOfStepsAhead) {
  constexpr int kAhead = 5000;
  const auto overflows = [](int step) { return step % 7 == 3; };
  Steps steps;
  std::vector<Taken> device;
  for (int i = 0; i < kAhead; ++i) {
    device.push_back(steps.backward());
    steps.step();
  }
  size_t told = 0;
  int64_t skipped = 0;
  for (int i = 0; i < kAhead; ++i) {
    arrive(*device[i], overflows(i), static_cast<float>(i + 1));
    told += steps.report_.flush().size();
    skipped += overflows(i);
    ASSERT_EQ(steps.known().steps, i + 1);
    ASSERT_EQ(steps.known().skipped_steps, skipped);
    ASSERT_EQ(steps.known().stepped, !overflows(i));
    ASSERT_EQ(steps.known().loss_scales, std::vector<double>{i + 1.0});
  }
  EXPECT_EQ(told, static_cast<size_t>(skipped));
}

TEST(LateReportTest, AStepWaitsForAllItsMicroBatches) {
  Steps steps;
  const Taken first = steps.backward(), second = steps.backward();
  steps.step();
  arrive(*second, false, 8.0f);
  EXPECT_TRUE(steps.report_.flush().empty());
  arrive(*first, true, 4.0f, {1});
  const auto skipped = steps.report_.flush();
  ASSERT_EQ(skipped.size(), 1u) << "the clean one hides nothing";
  EXPECT_EQ(skipped[0].nonfinite, 1);
  EXPECT_EQ(skipped[0].overflows.at(0).loss_scale, 8.0) << "the scale as it was at the step";
}

TEST(LateReportTest, EachLossHasItsOverflowAndScale) {
  Steps steps(/*losses=*/3);
  arrive(*steps.backward(2), true, 2.0f);
  arrive(*steps.backward(1), false, 3.0f);
  arrive(*steps.backward(2), true, 1.0f);
  steps.step();
  const auto skipped = steps.report_.flush();
  ASSERT_EQ(skipped.size(), 1u);
  ASSERT_EQ(skipped[0].overflows.size(), 1u);
  EXPECT_EQ(skipped[0].overflows[0].loss_id, 2);
  EXPECT_EQ(steps.known().loss_scales, (std::vector<double>{65536.0, 3.0, 1.0}));
}

TEST(LateReportTest, SkippedStepsInARowAreCounted) {
  Steps steps;
  std::vector<int64_t> in_a_row;
  for (const bool found : {true, true, false, true, true, true}) {
    arrive(*steps.backward(), found);
    steps.step();
    for (const SkippedStep& skipped : steps.report_.flush()) in_a_row.push_back(skipped.in_a_row);
  }
  EXPECT_EQ(in_a_row, (std::vector<int64_t>{1, 2, 1, 2, 3}));
}

TEST(LateReportTest, ALossThatIsNotFiniteIsNamed) {
  Steps steps;
  const Taken report = steps.backward();
  publish(*static_cast<Report*>(report->bytes().mutable_data_ptr()),
          packed_outcome(kLossNotFinite, 0.5f));
  EXPECT_TRUE(report->found_inf());
  steps.step();
  const auto messages = texts_of(steps.report_.flush().at(0));
  EXPECT_EQ(messages,
            std::vector<std::string>{"loss 0 is not finite: step skipped, loss scale now 0.5"});
}

TEST(LateReportTest, AnOverflowUnderAFixedScaleIsNoSkip) {
  Steps steps;
  const Taken report = take();
  arrive(*report, true);
  steps.report_.after_backward({0, report, report, /*skips=*/false});
  steps.step();
  EXPECT_TRUE(steps.report_.flush().empty());
  EXPECT_EQ(steps.known().stepped, true);
}

SkippedStep skipped_step(int64_t in_a_row, bool is_loss_finite = true) {
  SkippedStep step;
  step.overflows = {{1, 0.25, is_loss_finite}};
  step.nonfinite = 5;
  step.in_a_row = in_a_row;
  step.scales_then = {64, 128, 256};
  return step;
}

TEST(SkipMessagesTest, NameParametersAndScale) {
  EXPECT_EQ(
      texts_of(skipped_step(1), {"first.weight", "last.bias"}),
      std::vector<std::string>{"gradient overflow in loss 1, at first.weight, last.bias and 3 "
                               "more: step skipped, loss scale now 0.25"});
}

TEST(SkipMessagesTest, AStepThatSeveralLossesSkipIsReportedOnce) {
  SkippedStep step = skipped_step(1);
  step.overflows.push_back({2, 4, true});
  EXPECT_EQ(texts_of(step, {"weight"}),
            std::vector<std::string>{"gradient overflow in loss 1 and gradient overflow in loss 2, "
                                     "at weight and 4 more: step skipped, loss scales now 0.25 "
                                     "and 4"});
}

TEST(SkipMessagesTest, ALongRunIsReportedEverMoreRarelyWithItsReason) {
  size_t lines = 0;
  for (int64_t i = 1; i <= 10000; ++i) lines += texts_of(skipped_step(i)).size();
  EXPECT_LT(lines, 40u);
  EXPECT_PRED2(contains, texts_of(skipped_step(10)).at(1),
               "10 steps skipped in a row, loss scale from 128 to 0.25: lowering the loss");
  EXPECT_PRED2(contains, texts_of(skipped_step(20, false)).at(1), "the loss itself is not finite");
}

TEST(SkipMessagesTest, WhatWaitsForTheDeviceIsAskedOnlyWhereItIsTold) {
  int asked = 0;
  const auto in_float8 = [&asked] { return ++asked, std::string("the input of ff"); };
  EXPECT_EQ(messages_of(skipped_step(1), {"weight"}, in_float8).at(0).text,
            "gradient overflow in loss 1: float8: the input of ff was not finite: step skipped, "
            "loss scale now 0.25");
  EXPECT_TRUE(messages_of(skipped_step(11), {"weight"}, in_float8).empty());
  EXPECT_EQ(asked, 1);
}

TEST(SkipMessagesTest, ALongRunIsAWarningAndASkipIsNone) {
  const auto messages = messages_of(skipped_step(10));
  EXPECT_EQ(messages.at(0).level, LogLevel::kInfo);
  EXPECT_EQ(messages.at(1).level, LogLevel::kWarning);
}

TEST(SkipMessagesTest, SkipsBeforeTheFirstStepAreNormalUnlessThereIsAnotherReason) {
  const std::string normal = "this is normal before the first step";
  const auto is_called_normal = [&](SkippedStep step, bool is_at_start) {
    step.is_at_start = is_at_start;
    return contains(texts_of(step).at(0), normal);
  };
  EXPECT_TRUE(is_called_normal(skipped_step(9), true));
  EXPECT_FALSE(is_called_normal(skipped_step(9), false));
  EXPECT_FALSE(is_called_normal(skipped_step(10), true));
  EXPECT_FALSE(is_called_normal(skipped_step(1, /*is_loss_finite=*/false), true));
}

TEST(SkipMessagesTest, TooManyInARowThrow) {
  EXPECT_NO_THROW(check_in_a_row(skipped_step(4), 5));
  for (const int64_t count : {5, 6}) {
    EXPECT_PRED2(contains, message_of([&] { check_in_a_row(skipped_step(count), 5); }),
                 "fewer than max_consecutive_skips = 5 skipped steps in a row, got ");
  }
}

TEST(LateReportTest, AClearedBackwardIsForgotten) {
  Steps steps;
  arrive(*steps.backward(), true);
  steps.report_.forget_backwards();
  steps.step();
  EXPECT_TRUE(steps.report_.flush().empty());
  EXPECT_EQ(steps.known().stepped, true);
}

TEST(LateReportTest, AStepInAGraphIsNotSeen) {
  Steps steps;
  steps.report_.after_backward({0, nullptr, nullptr});
  steps.step();
  steps.report_.flush();
  EXPECT_EQ(steps.known().steps, 0);
}

TEST(LateReportTest, ScalesSetByTheHostOrWithoutReportsAreCorrect) {
  Steps steps(/*losses=*/2);
  steps.scalers_[0]->set_loss_scale(32.0);
  steps.scalers_[1]->found_inf().fill_(1.0f);
  steps.scalers_[1]->update();
  steps.step();
  steps.report_.flush();
  EXPECT_EQ(steps.known().loss_scales, (std::vector<double>{32.0, 32768.0}));
}

TEST(LateReportTest, BackwardsWithoutAStepDoNotPileUp) {
  Steps steps;
  std::set<const BackwardReport*> seen;
  for (int i = 0; i < 100000; ++i) {
    const Taken backward = steps.backward();
    seen.insert(backward.get());
    arrive(*backward, false);
  }
  EXPECT_LT(seen.size(), 100000u);
}

}  // namespace
}  // namespace torchamp
