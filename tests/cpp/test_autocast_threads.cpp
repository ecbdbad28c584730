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

TEST_P(AutocastThreadsTest, ABackwardIsUncastUntilLifted) {
  const OpenAutocast opened = open(at::kBFloat16);
  const ShieldBackward shield(/*was_cast=*/true);
  EXPECT_EQ(mm_type(), at::kFloat);
  {
    const CastInBackward lifted;
    EXPECT_EQ(mm_type(), at::kBFloat16);
    { const CastInBackward again; }
    EXPECT_EQ(mm_type(), at::kBFloat16);
  }
  EXPECT_EQ(mm_type(), at::kFloat);
}

TEST_P(AutocastThreadsTest, ABackwardOfAnUncastForwardIsNotLifted) {
  const OpenAutocast opened = open();
  const ShieldBackward shield(/*was_cast=*/false);
  const CastInBackward lifted;
  EXPECT_EQ(mm_type(), at::kFloat);
}

/// Autograd passes this state to its threads for CUDA devices.
TEST_P(AutocastThreadsTest, ABackwardIsLiftedInTheThreadsThatWorkForIt) {
  const OpenAutocast opened = open(at::kBFloat16);
  const ShieldBackward shield(/*was_cast=*/true);
  const at::ThreadLocalState handed_over;
  std::thread([&] {
    const at::ThreadLocalStateGuard guard(handed_over);
    EXPECT_EQ(mm_type(), at::kFloat);
    const CastInBackward lifted;
    EXPECT_EQ(mm_type(), at::kBFloat16);
    EXPECT_EQ(casting_to(type()), at::kBFloat16);
  }).join();
}

TORCHAMP_ON_EACH_DEVICE(AutocastThreadsTest);

}  // namespace
}  // namespace torchamp
