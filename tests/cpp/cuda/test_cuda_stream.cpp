// Queries of a device's stream are made in the device's context.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "cuda/stream.h"

namespace torchamp::cuda {
namespace {

std::vector<std::string> calls;
int contexts[2];
int failing_with = 0;
int stream;

std::string device_of(const void* context) {
  return std::to_string(static_cast<const int*>(context) - contexts);
}

Driver driver_that_records() {
  Driver driver{};
  driver.device_get = [](int* device, int ordinal) { return *device = ordinal, 0; };
  driver.primary_context_retain = [](void** context, int device) {
    calls.push_back("retain " + std::to_string(device));
    return *context = &contexts[device], 0;
  };
  driver.primary_context_release = [](int device) {
    return calls.push_back("release " + std::to_string(device)), 0;
  };
  driver.context_push = [](void* context) {
    return calls.push_back("push " + device_of(context)), 0;
  };
  driver.context_pop = [](void**) { return calls.push_back("pop"), 0; };
  driver.stream_is_capturing = [](void* asked, int* status) {
    calls.push_back(asked == &stream ? "ask" : "ask another stream");
    return *status = 1, failing_with;
  };
  driver.error_name = [](int, const char** name) { return *name = "CUDA_ERROR_UNKNOWN", 0; };
  return driver;
}

class IsCapturing : public testing::Test {
 protected:
  void SetUp() override {
    static const Driver driver = driver_that_records();
    use_driver(driver);
    calls.clear();
  }

  const std::vector<std::string> expected_ = {"retain 1", "push 1", "ask", "pop", "release 1"};
};

TEST_F(IsCapturing, AsksInTheContextOfTheQueuesDevice) {
  EXPECT_TRUE(is_capturing(Queue{1, &stream}));
  EXPECT_EQ(calls, expected_);
}

TEST_F(IsCapturing, LeavesTheThreadAsItWasWhereTheDriverFails) {
  failing_with = 999;
  EXPECT_THROW(is_capturing(Queue{1, &stream}), std::runtime_error);
  failing_with = 0;
  EXPECT_EQ(calls, expected_);
}

}  // namespace
}  // namespace torchamp::cuda
