// The warnings about CUDA devices without kernels. The driver is a fake one.
#include <gtest/gtest.h>
#include <torchamp/logging.h>

#include <string>
#include <vector>

#include "cuda/registry.h"
#include "ops/device_kernels.h"

namespace torchamp {
namespace {

int driver_version = 13000;
int capability = 90;

cuda::Driver make_driver() {
  cuda::Driver driver{};
  driver.driver_version = [](int* version) { return *version = driver_version, 0; };
  driver.device_get = [](int* device, int ordinal) { return *device = ordinal, 0; };
  driver.device_attribute = [](int* value, int attribute, int) {
    return *value = attribute == 75 ? capability / 10 : capability % 10, 0;
  };
  return driver;
}

/// Each test uses another device, because a device's backend is chosen once.
class DeviceKernelsTest : public testing::Test {
 protected:
  DeviceKernelsTest() {
    cuda::use_driver(driver_);
    before_ = set_log_sink([this](LogLevel level, const std::string& text) {
      EXPECT_EQ(level, LogLevel::kWarning);
      heard_.push_back(text);
    });
  }
  ~DeviceKernelsTest() override { set_log_sink(before_); }

  static at::Device cuda_device(int index) {
    return {at::kCUDA, static_cast<at::DeviceIndex>(index)};
  }
  /// Chooses the backend without asking torch, which may have no such device.
  static bool has_kernels_on(int index) {
    cuda::device_of({index, nullptr});
    return has_kernels(cuda_device(index));
  }

  std::vector<std::string> heard_;

 private:
  static const cuda::Driver driver_;
  LogSink before_;
};

const cuda::Driver DeviceKernelsTest::driver_ = make_driver();

TEST_F(DeviceKernelsTest, ADriverThatIsTooOldIsToldOnce) {
  driver_version = 12000;
  EXPECT_FALSE(has_kernels_on(20));
  EXPECT_FALSE(has_kernels_on(20));
  EXPECT_EQ(heard_,
            std::vector<std::string>{
                "ops: expected kernels for CUDA device 20, got none, so torch's own ops run, which "
                "take longer (device 20: the driver supports CUDA 12.0, the kernels need 12.1; "
                "update the driver); TORCHAMP_KERNELS=aten runs them without this warning"});
  driver_version = 13000;
}

TEST_F(DeviceKernelsTest, ACardThatIsTooOldIsToldOnceADevice) {
  capability = 61;
  for (const int index : {21, 22, 21}) EXPECT_FALSE(has_kernels_on(index));
  ASSERT_EQ(heard_.size(), 2u);
  EXPECT_EQ(
      heard_[1],
      "ops: expected kernels for CUDA device 22, got none, so torch's own ops run, which take "
      "longer (device 22: the device has compute capability 6.1, the kernels need 7.0); "
      "TORCHAMP_KERNELS=aten runs them without this warning");
  capability = 90;
}

TEST_F(DeviceKernelsTest, ADeviceThatTorchDoesNotHaveIsNotTold) {
  EXPECT_FALSE(has_kernels(cuda_device(63)));
  EXPECT_FALSE(has_kernels(at::kMeta));
  EXPECT_EQ(heard_, std::vector<std::string>{});
}

}  // namespace
}  // namespace torchamp
