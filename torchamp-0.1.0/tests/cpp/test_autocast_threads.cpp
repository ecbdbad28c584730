#include <ATen/ThreadLocalState.h>

#include <thread>
#include <vector>

#include "autocast_test.h"

namespace torchamp {
namespace {

using AutocastThreadsTest = AutocastTest;

TEST_P(AutocastThreadsTest, AnotherThreadMayJoin) {
  OpenAutocast opened = open(at::kBFloat16);
  std::vector<at::ScalarType> in_thread;
  std::thread([&] {
    {
      const JoinAutocast joined(opened);
      in_thread.push_back(mm_type());
      const JoinAutocast again(opened);
      in_thread.push_back(mm_type());
    }
    in_thread.push_back(mm_type());
    const State after = state_of(type());
    EXPECT_TRUE(!after.enabled && after.cache_enabled && after.nesting == 0);
  }).join();
  EXPECT_EQ(in_thread, std::vector({at::kBFloat16, at::kBFloat16, at::kFloat}));
}

TEST_P(AutocastThreadsTest, JoinRespectsWhatTheThreadSwitchedOff) {
  OpenAutocast opened = open();
  std::vector<at::ScalarType> in_thread;
  std::thread([&] {
    {
      const autocast off(type(), {}, /*enabled=*/false);
      const JoinAutocast joined(opened);
      in_thread.push_back(mm_type());
    }
    const ShieldFromAutocast shield;
    const JoinAutocast joined(opened);
    in_thread.push_back(mm_type());
  }).join();
  EXPECT_EQ(in_thread, std::vector({at::kFloat, at::kFloat}));
}

TEST_P(AutocastThreadsTest, AClosedAutocastCannotBeJoined) {
  OpenAutocast opened = open();
  opened.close();
  std::thread([&] {
    const JoinAutocast joined(opened);
    EXPECT_EQ(mm_type(), at::kFloat);
  }).join();
}

TEST_P(AutocastThreadsTest, ABackwardIsUncastButWhereAForwardsStateIsApplied) {
  const OpenAutocast opened = open(at::kBFloat16);
  const AutocastState forward = autocast::capture_state();
  const ShieldBackward shield;
  EXPECT_EQ(mm_type(), at::kFloat);
  {
    const auto casts = forward.apply();
    EXPECT_EQ(mm_type(), at::kBFloat16);
    const ShieldBackward nested;
    EXPECT_EQ(mm_type(), at::kFloat);
  }
  EXPECT_EQ(mm_type(), at::kFloat);
}

TEST_P(AutocastThreadsTest, AnUncastForwardIsAppliedUncast) {
  const OpenAutocast opened = open();
  const auto forward = [] {
    const disable_casts island;
    return autocast::capture_state();
  }();
  const ShieldBackward shield;
  const auto casts = forward.apply();
  EXPECT_EQ(mm_type(), at::kFloat);
}

TEST_P(AutocastThreadsTest, ABackwardUnderDisableCastsRunsInFloat32AsItsIsland) {
  const OpenAutocast opened = open();
  const auto x = at::ones({2, 2}, device()).requires_grad_();
  const auto y = [&] {
    const autocast off(type(), {}, /*enabled=*/false);
    return x.mm(at::full({2, 2}, 1.0 + 0x1p-20, device()));
  }();
  const disable_casts off;
  y.backward(at::ones_like(y));
  EXPECT_EQ(x.grad()[0][0].item<float>(), 2.0f + 0x1p-19f);
}

/// Autograd passes this state to its threads for CUDA devices.
TEST_P(AutocastThreadsTest, AForwardsStateIsAppliedInTheThreadsThatWorkForABackward) {
  const OpenAutocast opened = open(at::kBFloat16);
  const AutocastState forward = autocast::capture_state();
  const ShieldBackward shield;
  const at::ThreadLocalState handed_over;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(handed_over);
    EXPECT_EQ(mm_type(), at::kFloat);
    const auto casts = forward.apply();
    EXPECT_EQ(mm_type(), at::kBFloat16);
    EXPECT_EQ(casting_to(type()), at::kBFloat16);
  }).join();
}

/// A checkpoint casts by a scope where it computes a part of the forward again.
TEST_P(AutocastThreadsTest, AnIslandInACheckpointIsUncastInTheThreadsThatWorkForABackward) {
  const OpenAutocast opened = open(at::kBFloat16);
  const ShieldBackward shield;
  const at::ThreadLocalState handed_over;
  const auto recompute = [&] {
    const autocast as_in_forward(type(), at::kBFloat16);
    EXPECT_EQ(mm_type(), at::kBFloat16);
    EXPECT_EQ(casting_to(type()), at::kBFloat16);
    {
      const disable_casts island;
      EXPECT_EQ(mm_type(), at::kFloat);
    }
    EXPECT_EQ(mm_type(), at::kBFloat16);
  };
  recompute();
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(handed_over);
    recompute();
  }).join();
}

TORCHAMP_ON_EACH_DEVICE(AutocastThreadsTest);

}  // namespace
}  // namespace torchamp
