#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>

#include "autocast_test.h"
#include "errors.h"

namespace torchamp {
namespace {

TEST_P(AutocastTest, CastsInItsScope) {
  EXPECT_EQ(mm_type(), at::kFloat);
  {
    const autocast guard(type(), at::kHalf);
    EXPECT_EQ(mm_type(), at::kHalf);
    EXPECT_FALSE(state_of(type()).cache_enabled);
  }
  EXPECT_EQ(mm_type(), at::kFloat);
}

TEST_P(AutocastTest, ScopesNest) {
  const autocast outer(type(), at::kHalf);
  {
    const autocast inner(type(), at::kBFloat16);
    EXPECT_EQ(mm_type(), at::kBFloat16);
    const autocast off(type(), AutocastOptions().enabled(false));
    EXPECT_EQ(mm_type(), at::kFloat);
  }
  EXPECT_EQ(mm_type(), at::kHalf);
}

TEST_P(AutocastTest, AnExceptionEndsTheScopeToo) {
  EXPECT_THROW(
      {
        const autocast guard(type(), AutocastOptions(at::kBFloat16).cache_enabled(true));
        throw std::runtime_error("out of the scope");
      },
      std::runtime_error);
  EXPECT_TRUE(state_of(type()) == before_);
}

TEST_P(AutocastTest, DisabledItTakesAnyDtypeAndCastsNothing) {
  const autocast guard(type(), AutocastOptions(at::kFloat).enabled(false));
  EXPECT_EQ(mm_type(), at::kFloat);
}

TEST_P(AutocastTest, RefusesWhatCannotBeCastTo) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kInt}) {
    EXPECT_EQ(
        message_of<c10::ValueError>([&] { const autocast casts(type(), dtype); }),
        std::string("autocast: expected dtype to be Half or BFloat16, got ") + toString(dtype));
  }
  for (const bool enabled : {true, false}) {
    const auto on_vulkan = [&] {
      const autocast casts(at::kVulkan, AutocastOptions(at::kHalf).enabled(enabled));
    };
    EXPECT_EQ(message_of<c10::ValueError>(on_vulkan),
              "autocast: expected device_type to be one that has autocast, got vulkan");
  }
}

/// The weight's cast lives in the cache as long as any scope does, and no longer.
TEST_P(AutocastTest, TheOutermostScopeClearsTheCache) {
  const at::Tensor weight = Random(51).normal({2, 2}, at::kFloat, device()).requires_grad_();
  const auto product = [&] { return at::mm(weight, weight).detach(); };
  {
    const autocast outer(type(), AutocastOptions(at::kHalf).cache_enabled(true));
    const at::Tensor before = product();
    { const autocast inner(type(), AutocastOptions(at::kHalf).cache_enabled(true)); }
    weight.variable_data().zero_();
    EXPECT_TRUE(same_bits(product(), before)) << "not from the cache";
  }
  const autocast again(type(), AutocastOptions(at::kHalf).cache_enabled(true));
  EXPECT_EQ(product().abs().sum().item<float>(), 0.0f);
}

TEST_P(AutocastTest, AScopeOfAnotherDtypeFindsNoCastsOfTheOuter) {
  const at::Tensor weight = Random(51).normal({2, 2}, at::kFloat, device()).requires_grad_();
  const auto product_type = [&] { return at::mm(weight, weight).scalar_type(); };
  const autocast outer(type(), AutocastOptions(at::kHalf).cache_enabled(true));
  EXPECT_EQ(product_type(), at::kHalf);
  {
    const autocast inner(type(), AutocastOptions(at::kBFloat16).cache_enabled(true));
    EXPECT_EQ(product_type(), at::kBFloat16);
  }
  EXPECT_EQ(product_type(), at::kHalf);
}

TEST_P(AutocastTest, OtherThreadsAreNotConcerned) {
  const autocast guard(type(), at::kHalf);
  const OpenAutocast opened({type()}, at::kHalf);
  at::ScalarType in_thread = at::kByte;
  std::thread([&] { in_thread = mm_type(); }).join();
  EXPECT_EQ(in_thread, at::kFloat);
}

TEST_P(AutocastTest, OpenCastsUntilClosed) {
  OpenAutocast opened = open();
  EXPECT_EQ(mm_type(), at::kHalf);
  EXPECT_FALSE(state_of(type()).cache_enabled);
  opened.close();
  EXPECT_TRUE(state_of(type()) == before_);
  opened.close();
  EXPECT_TRUE(state_of(type()) == before_);
}

TEST_P(AutocastTest, OpenCastsUntilTheLastIsClosed) {
  OpenAutocast first = open();
  {
    const OpenAutocast second = open();
    first.close();
    EXPECT_EQ(mm_type(), at::kHalf);
  }
  EXPECT_EQ(mm_type(), at::kFloat);
}

TEST_P(AutocastTest, TwoDtypesInOneThreadAreRefused) {
  const OpenAutocast opened = open();
  EXPECT_EQ(message_of([] { open(at::kBFloat16); }),
            "initialize: autocast to Half is already active for a model in this thread, cannot "
            "also autocast to BFloat16; close that model first, or use it in another thread");
  EXPECT_EQ(mm_type(), at::kHalf);
}

TEST_P(AutocastTest, TwoDtypesInTwoThreadsAreFine) {
  const OpenAutocast opened = open();
  at::ScalarType in_thread = at::kByte;
  std::thread([&] {
    const OpenAutocast other = open(at::kBFloat16);
    in_thread = mm_type();
  }).join();
  EXPECT_EQ(in_thread, at::kBFloat16);
  EXPECT_EQ(mm_type(), at::kHalf);
}

TEST_P(AutocastTest, OpenGoesBackToTheScopeItWasOpenedIn) {
  const autocast guard(type(), at::kBFloat16);
  OpenAutocast opened = open();
  EXPECT_EQ(mm_type(), at::kHalf);
  opened.close();
  EXPECT_EQ(mm_type(), at::kBFloat16);
}

TEST_P(AutocastTest, AnInnerScopeOverridesOpen) {
  const OpenAutocast opened = open();
  {
    const autocast guard(type(), at::kBFloat16);
    EXPECT_EQ(mm_type(), at::kBFloat16);
  }
  EXPECT_EQ(mm_type(), at::kHalf);
}

TEST_P(AutocastTest, AShieldUndoesOpen) {
  const OpenAutocast opened = open();
  {
    const disable_casts shield;
    EXPECT_EQ(mm_type(), at::kFloat);
    const disable_casts inner;
    EXPECT_EQ(mm_type(), at::kFloat);
  }
  EXPECT_EQ(mm_type(), at::kHalf);
}

TEST_P(AutocastTest, AShieldLeavesTheUsersScopesAlone) {
  const OpenAutocast opened = open();
  const autocast guard(type(), at::kBFloat16);
  const disable_casts shield;
  EXPECT_EQ(mm_type(), at::kBFloat16);
}

TEST_P(AutocastTest, AShieldDetectsAnAutocastClosedByAnotherThread) {
  OpenAutocast opened = open();
  std::thread([&] { opened.close(); }).join();
  { const disable_casts shield; }
  EXPECT_EQ(mm_type(), at::kFloat);
}

TEST_P(AutocastTest, WhatIsClosedUnderAShieldStaysClosed) {
  OpenAutocast opened = open();
  {
    const disable_casts shield;
    opened.close();
  }
  EXPECT_EQ(mm_type(), at::kFloat);
}

TORCHAMP_ON_EACH_DEVICE(AutocastTest);

TEST(AutocastFork, AWorkerForkedFromTheThreadDoesNotCast) {
  const OpenAutocast opened({at::kCPU}, at::kHalf);
  const pid_t worker = fork();
  if (worker == 0) _exit(at::autocast::is_autocast_enabled(at::kCPU) ? 1 : 0);
  int status = -1;
  ASSERT_EQ(waitpid(worker, &status, 0), worker);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
}

}  // namespace
}  // namespace torchamp
