// The choice of a backend, with a fake driver that fails on request.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

#include "cuda/embedded.h"
#include "cuda/loader.h"
#include "errors.h"
#include "kernels.h"

namespace torchamp::cuda {
namespace {

/// The fake driver's behaviour, and a record of its calls.
struct Machine {
  int driver_version = 13000;
  int capability = 90;
  int load_error = 0;
  const char* missing_kernel = "";

  int retained = 0;
  int contexts = 0;
  int capture_mode = 0;
  int modules = 0;
  int images_tried = 0;
  int functions = 0;
};

Machine machine;

void expect_loading_scope() {
  EXPECT_EQ(machine.contexts, 1) << "loaded outside the device's context";
  EXPECT_EQ(machine.capture_mode, 2) << "loaded without relaxing the capture mode";
}

int module_load(void** module, const void*) {
  ++machine.images_tried;
  expect_loading_scope();
  if (machine.load_error != 0) return machine.load_error;
  *module = &++machine.modules;
  return 0;
}

int find_function(void** function, void*, const char* name) {
  expect_loading_scope();
  if (std::strcmp(name, machine.missing_kernel) == 0) return 500;
  static std::set<std::string> names;
  *function = const_cast<std::string*>(&*names.insert(name).first);
  return 0;
}

int error_name(int code, const char** name) {
  *name = code == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : "CUDA_ERROR_NOT_FOUND";
  return 0;
}

Driver driver_of_machine() {
  Driver driver{};
  driver.driver_version = [](int* version) { return *version = machine.driver_version, 0; };
  driver.device_get = [](int* device, int ordinal) { return *device = ordinal, 0; };
  driver.device_attribute = [](int* value, int attribute, int) {
    *value = attribute == 75 ? machine.capability / 10 : machine.capability % 10;
    return 0;
  };
  driver.primary_context_retain = [](void** context, int) {
    return ++machine.retained, *context = &machine, 0;
  };
  driver.primary_context_release = [](int) { return --machine.retained, 0; };
  driver.context_push = [](void*) { return ++machine.contexts, 0; };
  driver.context_pop = [](void**) { return --machine.contexts, 0; };
  driver.module_load = module_load;
  driver.module_unload = [](void*) { return --machine.modules, 0; };
  driver.module_function = find_function;
  driver.function_load = [](void*) { return expect_loading_scope(), ++machine.functions, 0; };
  driver.exchange_capture_mode = [](int* mode) {
    return std::swap(*mode, machine.capture_mode), 0;
  };
  driver.error_name = error_name;
  return driver;
}

class Loader : public testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("TORCHAMP_CACHE", "off", 1); }
  void SetUp() override { machine = Machine{}; }
  void TearDown() override {
    EXPECT_EQ(machine.contexts, 0) << "a context stayed current";
    EXPECT_EQ(machine.retained, 0) << "a context stayed retained";
    EXPECT_EQ(machine.capture_mode, 0) << "the capture mode was not restored";
  }

  const Driver driver_ = driver_of_machine();
};

bool has_fatbin() {
  return embedded_fatbin().size > 0;
}

TEST_F(Loader, TakesTheFatbinFirst) {
  if (!has_fatbin()) GTEST_SKIP() << "built without nvcc";
  const Module module = load_module(driver_, 0, Choice::kAuto);
  EXPECT_EQ(module.backend, Backend::kFatbin);
  EXPECT_EQ(module.reason, "");
  EXPECT_EQ(module.context->handle(), &machine);
  EXPECT_EQ(machine.retained, 1);
  EXPECT_EQ(machine.images_tried, 1);
  EXPECT_EQ(machine.functions, 0) << "kernels are loaded by need";
  int loaded = 0;
  for (const Kernel kernel : all_kernels()) {
    const void* function = load_kernel(driver_, module, kernel);
    EXPECT_EQ(*static_cast<const std::string*>(function), name(kernel));
    EXPECT_EQ(machine.functions, ++loaded);
  }
  EXPECT_EQ(machine.images_tried, 1);
}

TEST_F(Loader, LeavesTheDeviceToAtenWhenNoImageLoads) {
  machine.load_error = 209;
  const Module module = load_module(driver_, 0, Choice::kAuto);
  EXPECT_EQ(module.backend, Backend::kAten);
  EXPECT_TRUE(contains(module.reason, "fatbin: "));
  EXPECT_TRUE(contains(module.reason, "nvrtc: "));
  if (has_fatbin()) {
    EXPECT_TRUE(contains(module.reason, "CUDA_ERROR_NO_BINARY_FOR_GPU (209)")) << module.reason;
  }
  EXPECT_EQ(machine.retained, 0) << "the context of a device without kernels";
}

TEST_F(Loader, AFullMemoryIsNoReasonForAten) {
  if (!has_fatbin()) GTEST_SKIP() << "built without nvcc";
  machine.load_error = 2;
  for (const Choice choice : {Choice::kAuto, Choice::kAot}) {
    std::string message = "nothing was thrown";
    try {
      load_module(driver_, 0, choice);
    } catch (const OutOfMemory& error) {
      message = error.what();
    }
    EXPECT_EQ(message,
              "loading the kernels failed: CUDA out of memory. torch.cuda.empty_cache() frees what "
              "torch keeps unused");
  }
  EXPECT_EQ(machine.images_tried, 2) << "NVRTC's need memory too";
}

TEST_F(Loader, NamesAKernelThatTheImageLacks) {
  if (!has_fatbin()) GTEST_SKIP() << "built without nvcc";
  machine.missing_kernel = "torchamp_unscale";
  const Module module = load_module(driver_, 0, Choice::kAuto);
  const std::string message =
      message_of([&] { load_kernel(driver_, module, {Function::kUnscale}); });
  EXPECT_EQ(message, "finding torchamp_unscale failed: CUDA_ERROR_NOT_FOUND (500)");
  load_kernel(driver_, module, {Function::kAxpby});
}

TEST_F(Loader, ThrowsWhenTheDemandedBackendCannotBeHad) {
  machine.load_error = 209;
  for (const Choice choice : {Choice::kAot, Choice::kNvrtc}) {
    const std::string message = message_of([&] { load_module(driver_, 3, choice); });
    EXPECT_TRUE(contains(message, "TORCHAMP_KERNELS")) << message;
    EXPECT_TRUE(contains(message, "CUDA device 3")) << message;
    EXPECT_EQ(contains(message, "fatbin: "), choice == Choice::kAot) << message;
    EXPECT_EQ(contains(message, "nvrtc: "), choice == Choice::kNvrtc) << message;
  }
}

TEST_F(Loader, DoesNotTouchTheDriverWhenAtenIsDemanded) {
  const Module module = load_module(Driver{}, 0, Choice::kAten);
  EXPECT_EQ(module.backend, Backend::kAten);
  EXPECT_EQ(module.reason, "TORCHAMP_KERNELS=aten");
}

TEST(ParseChoice, KnowsItsValues) {
  EXPECT_EQ(parse_choice(nullptr), Choice::kAuto);
  EXPECT_EQ(parse_choice(""), Choice::kAuto);
  EXPECT_EQ(parse_choice("auto"), Choice::kAuto);
  EXPECT_EQ(parse_choice("aot"), Choice::kAot);
  EXPECT_EQ(parse_choice("nvrtc"), Choice::kNvrtc);
  EXPECT_EQ(parse_choice("aten"), Choice::kAten);
}

TEST(ParseChoice, NamesTheVariableAndItsValues) {
  EXPECT_EQ(message_of([] { parse_choice("cuda"); }),
            "TORCHAMP_KERNELS: expected auto, aot, nvrtc or aten, got cuda");
}

}  // namespace
}  // namespace torchamp::cuda
