// The process's table of modules. The driver is a fake one: a device whose stream may be in
// capture.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "cuda/launch.h"
#include "cuda/module.h"
#include "cuda/registry.h"

namespace torchamp::cuda {
namespace {

bool capturing = false;

Driver make_driver() {
  Driver driver{};
  driver.driver_version = [](int* version) { return *version = 11080, 0; };
  driver.stream_is_capturing = [](void*, int* status) { return *status = capturing ? 1 : 0, 0; };
  return driver;
}

const Driver fake_driver = make_driver();

template <class Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Each test uses a device of its own: what is loaded stays loaded.
TEST(ModuleOf, RefusesToLoadWhileAGraphIsCaptured) {
  use_driver(fake_driver);
  capturing = true;
  EXPECT_EQ(
      message_of([] {
        module_of(Queue{1, nullptr});
      }),
      "the kernels of CUDA device 1 cannot be loaded while a CUDA graph is captured: run the op "
      "once before");
  capturing = false;
  EXPECT_EQ(module_of(Queue{1, nullptr}).rung, Rung::kAten);
}

TEST(ModuleOf, LoadsADeviceOnce) {
  use_driver(fake_driver);
  const Module& first = module_of(Queue{2, nullptr});
  capturing = true;
  EXPECT_EQ(&module_of(Queue{2, nullptr}), &first);
  capturing = false;
}

TEST(ModuleOf, RefusesDevicesThatCannotBe) {
  EXPECT_EQ(message_of([] {
              module_of(Queue{-1, nullptr});
            }),
            "expected a CUDA device from 0 to 63, got -1");
  EXPECT_EQ(message_of([] { rung(64); }), "expected a CUDA device from 0 to 63, got 64");
}

TEST(Launch, NamesTheKernelAndTheReasonWhereThereAreNone) {
  use_driver(fake_driver);
  EXPECT_EQ(
      message_of([] {
        launch(Queue{3, nullptr}, Kernel::kUnscale, 1, nullptr);
      }),
      "torchamp_unscale: CUDA device 3 has no kernels: device 3: the driver supports CUDA 11.8, "
      "the kernels need 12.1");
}

TEST(Rung, IsAtenWithAReasonWhereTorchHasNoCuda) {
  EXPECT_EQ(rung(4), Rung::kAten);
  EXPECT_NE(rung_reason(4), "");
}

TEST(Rung, HasAName) {
  EXPECT_STREQ(name(Rung::kFatbin), "fatbin");
  EXPECT_STREQ(name(Rung::kNvrtc), "nvrtc");
  EXPECT_STREQ(name(Rung::kAten), "aten");
}

TEST(Fork, LeavesTheChildWithAClearError) {
  use_driver(fake_driver);
  module_of(Queue{5, nullptr});
  const pid_t child = fork();
  if (child == 0) {
    const std::string message = message_of([] { module_of(Queue{5, nullptr}); });
    _exit(message.find("forked") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/// The variable is read once a process, so each value needs its own.
void exit_with_forced_aten(const char* value) {
  setenv("TORCHAMP_KERNELS", value, 1);
  const std::string message = message_of([] { std::exit(forced_aten() ? 10 : 11); });
  std::fprintf(stderr, "%s", message.c_str());
  std::exit(12);
}

TEST(ForcedAtenDeathTest, FollowsTheVariable) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_forced_aten("aten"), testing::ExitedWithCode(10), "");
  EXPECT_EXIT(exit_with_forced_aten("auto"), testing::ExitedWithCode(11), "");
  EXPECT_EXIT(exit_with_forced_aten("gpu"), testing::ExitedWithCode(12),
              "TORCHAMP_KERNELS: expected auto, aot, nvrtc or aten, got gpu");
}

}  // namespace
}  // namespace torchamp::cuda
