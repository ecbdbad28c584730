#include <ATen/ops/matmul.h>

#include <thread>

#include "autocast_test.h"
#include "errors.h"

namespace torchamp {
namespace {

class AutocastStateTest : public AutocastTest {
 protected:
  /// The state of a new thread inside `body` and after it.
  template <class Body>
  static State after_in_thread(Body body) {
    State after{};
    std::thread([&] {
      body();
      after = state_of(type());
    }).join();
    return after;
  }
  static State fresh() {
    return after_in_thread([] {});
  }
  /// The dtype of a sum of matrix products: float32 by apex's lists; torch's CPU list has no rule.
  static at::ScalarType sum_type() {
    const at::Tensor matrix = Random(50).normal({2, 2}, at::kFloat, device());
    return at::mm(matrix, matrix).sum().scalar_type();
  }
};

TEST_P(AutocastStateTest, AppliedInAnotherThreadItCastsThere) {
  const autocast guard(type(), AutocastOptions(at::kBFloat16).cache_enabled(true));
  const AutocastState casts = autocast::capture_state();
  at::ScalarType in_thread = at::kByte;
  State inside{};
  const State after = after_in_thread([&] {
    const auto scope = casts.apply();
    in_thread = mm_type();
    inside = state_of(type());
  });
  EXPECT_EQ(in_thread, at::kBFloat16);
  EXPECT_TRUE(inside == state_of(type()));
  EXPECT_TRUE(after == fresh());
}

TEST_P(AutocastStateTest, ItIsWhatWasCapturedWhateverComesAfterwards) {
  std::optional<AutocastState> casts;
  {
    const autocast guard(type(), at::kBFloat16);
    casts = autocast::capture_state();
  }
  EXPECT_EQ(mm_type(), at::kFloat);
  const auto scope = casts->apply();
  EXPECT_EQ(mm_type(), at::kBFloat16);
}

TEST_P(AutocastStateTest, SwitchedOffIsAStateToo) {
  const AutocastState none = autocast::capture_state();
  const autocast guard(type(), at::kHalf);
  {
    const auto scope = none.apply();
    EXPECT_EQ(mm_type(), at::kFloat);
  }
  EXPECT_EQ(mm_type(), at::kHalf);
}

TEST_P(AutocastStateTest, AnExceptionEndsTheScopeToo) {
  const autocast guard(type(), at::kHalf);
  const AutocastState casts = autocast::capture_state();
  const State after = after_in_thread([&] {
    EXPECT_THROW(
        {
          const auto scope = casts.apply();
          throw std::runtime_error("out of the scope");
        },
        std::runtime_error);
  });
  EXPECT_TRUE(after == fresh());
}

TEST_P(AutocastStateTest, O1ComesAlongWithItsLists) {
  const OpenAutocast opened = open();
  const AutocastState casts = autocast::capture_state();
  std::vector<at::ScalarType> in_thread;
  const State after = after_in_thread([&] {
    {
      const auto scope = casts.apply();
      in_thread = {mm_type(), sum_type()};
      const disable_casts shield;
      in_thread.push_back(mm_type());
    }
    in_thread.push_back(mm_type());
  });
  EXPECT_EQ(in_thread, std::vector({at::kHalf, at::kFloat, at::kFloat, at::kFloat}));
  EXPECT_TRUE(after == fresh());
}

TEST_P(AutocastStateTest, WhatWasClosedInTheMeantimeDoesNotComeAlong) {
  OpenAutocast opened = open();
  const AutocastState casts = autocast::capture_state();
  opened.close();
  const State after = after_in_thread([&] { const auto scope = casts.apply(); });
  EXPECT_TRUE(after == fresh());
}

TEST_P(AutocastStateTest, ManyThreadsAtOnce) {
  const autocast guard(type(), at::kBFloat16);
  const AutocastState casts = autocast::capture_state();
  std::vector<at::ScalarType> seen(8, at::kByte);
  std::vector<std::thread> threads;
  for (auto& slot : seen) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        const auto scope = casts.apply();
        slot = mm_type();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(seen, std::vector(8, at::kBFloat16));
}

TORCHAMP_ON_EACH_DEVICE(AutocastStateTest);

}  // namespace
}  // namespace torchamp
