// The process's table of devices and their kernels. The driver is a fake one.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <set>
#include <string>
#include <thread>

#include "cuda/embedded.h"
#include "cuda/launch.h"
#include "cuda/registry.h"
#include "errors.h"

namespace torchamp::cuda {
namespace {

constexpr int kInvalidContext = 201;
constexpr int kUnsupportedInCapture = 900;

int driver_version = 13000;
int load_error = 0;
thread_local int capture_mode = 0;
thread_local void* current_context = nullptr;
int context = 0;
int functions_found = 0;
std::promise<void>* slow_kernel = nullptr;

int in_context(int code) {
  return current_context == &context ? code : kInvalidContext;
}

int in_relaxed_mode() {
  return in_context(capture_mode == 2 ? 0 : kUnsupportedInCapture);
}

/// Blocks while loading the kernel `finalize` until the test releases it.
int module_function(void** function, void*, const char* name) {
  if (slow_kernel != nullptr && std::strcmp(name, "torchamp_finalize") == 0) {
    slow_kernel->get_future().wait();
  }
  ++functions_found;
  static std::set<std::string> names;
  return *function = const_cast<std::string*>(&*names.insert(name).first), in_relaxed_mode();
}

Driver make_driver() {
  Driver driver{};
  driver.driver_version = [](int* version) { return *version = driver_version, 0; };
  driver.device_get = [](int* device, int ordinal) { return *device = ordinal, 0; };
  driver.device_attribute = [](int* value, int, int) { return *value = 9, 0; };
  driver.primary_context_retain = [](void** found, int) { return *found = &context, 0; };
  driver.primary_context_release = [](int) { return 0; };
  driver.context_push = [](void* pushed) { return current_context = pushed, 0; };
  driver.context_pop = [](void**) { return current_context = nullptr, 0; };
  driver.exchange_capture_mode = [](int* mode) { return std::swap(*mode, capture_mode), 0; };
  driver.module_load = [](void** module, const void*) {
    return *module = &context, load_error != 0 ? load_error : in_relaxed_mode();
  };
  driver.module_unload = [](void*) { return in_relaxed_mode(); };
  driver.module_function = module_function;
  driver.launch_kernel = [](void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, void*, void**, void**) { return in_context(0); };
  driver.error_name = [](int, const char**) { return 1; };
  return driver;
}

const Driver fake_driver = make_driver();

/// Each test uses another device, because kernels stay loaded.
class ModuleTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("TORCHAMP_CACHE", "off", 1); }
  void SetUp() override {
    use_driver(fake_driver);
    driver_version = 13000;
    functions_found = 0;
  }
};

class KernelsTest : public ModuleTest {
 protected:
  void SetUp() override {
    ModuleTest::SetUp();
    if (embedded_fatbin().size == 0) GTEST_SKIP() << "built without nvcc";
  }
};

TEST_F(ModuleTest, ADeviceIsLoadedOnce) {
  Device& first = device_of(Queue{2, nullptr});
  EXPECT_EQ(&device_of(Queue{2, nullptr}), &first);
}

TEST_F(KernelsTest, AFullMemoryIsForgotten) {
  const auto load = [] { device_of(Queue{9, nullptr}); };
  load_error = 2;
  EXPECT_THROW(load(), OutOfMemory);
  load_error = 0;
  load();
  EXPECT_EQ(backend(9), Backend::kFatbin);
}

TEST_F(KernelsTest, AKernelIsLoadedAtItsFirstLaunch) {
  Device& device = device_of(Queue{6, nullptr});
  EXPECT_EQ(functions_found, 0);
  for (int i = 0; i < 2; ++i) launch(Queue{6, nullptr}, {Function::kUnscale}, 1, kThreads, nullptr);
  EXPECT_EQ(functions_found, 1);
  EXPECT_EQ(*static_cast<std::string*>(function_of(device, {Function::kUnscale})),
            "torchamp_unscale");
}

TEST_F(KernelsTest, TheFirstLaunchMayComeFromAnyThreadAndGoIntoACapture) {
  std::thread([] {
    launch(Queue{7, nullptr}, {Function::kUnscale}, 1, kThreads, nullptr);
    EXPECT_EQ(current_context, nullptr);
    EXPECT_EQ(capture_mode, 0);
  }).join();
}

TEST_F(KernelsTest, LoadedOnesDoNotWaitForOneThatIsBeingLoaded) {
  Device& device = device_of(Queue{8, nullptr});
  function_of(device, {Function::kAxpby});
  std::promise<void> go_on;
  slow_kernel = &go_on;
  std::thread slow([&] { function_of(device, {Function::kFinalize}); });
  const auto quick = std::async(std::launch::async, [&] {
    launch(Queue{8, nullptr}, {Function::kAxpby}, 1, kThreads, nullptr);
    return 0;
  });
  EXPECT_EQ(quick.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  go_on.set_value();
  slow.join();
  slow_kernel = nullptr;
}

TEST_F(ModuleTest, RefusesDevicesThatCannotBe) {
  EXPECT_EQ(message_of([] {
              device_of(Queue{-1, nullptr});
            }),
            "expected a CUDA device from 0 to 63, got -1");
  EXPECT_EQ(message_of([] { backend(64); }), "expected a CUDA device from 0 to 63, got 64");
}

TEST_F(ModuleTest, ALaunchNamesTheKernelAndTheReasonWhereThereAreNone) {
  driver_version = 11080;
  EXPECT_EQ(
      message_of([] {
        launch(Queue{3, nullptr}, {Function::kUnscale}, 1, kThreads, nullptr);
      }),
      "torchamp_unscale: CUDA device 3 has no kernels: device 3: the driver supports CUDA 11.8, "
      "the kernels need 12.1; update the driver");
}

TEST(Backend, IsAtenWithAReasonWhereTorchHasNoCuda) {
  EXPECT_EQ(backend(4), Backend::kAten);
  EXPECT_NE(backend_reason(4), "");
}

TEST(Backend, HasAName) {
  EXPECT_STREQ(name(Backend::kFatbin), "fatbin");
  EXPECT_STREQ(name(Backend::kNvrtc), "nvrtc");
  EXPECT_STREQ(name(Backend::kAten), "aten");
}

TEST_F(ModuleTest, AForkedChildGetsAClearError) {
  device_of(Queue{5, nullptr});
  const pid_t child = fork();
  if (child == 0) {
    const std::string message = message_of([] { device_of(Queue{5, nullptr}); });
    _exit(message.find("forked") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/// The variable is read once per process, so each value needs its own process.
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
