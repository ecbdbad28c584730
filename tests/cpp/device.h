// One test body for every device: CPU always, CUDA where a card is there.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <vector>

namespace torchamp {

/// The devices that this process can test on.
std::vector<at::Device> devices();

class DeviceTest : public ::testing::TestWithParam<at::Device> {
 protected:
  static at::Device device() { return GetParam(); }
};

inline std::string device_name(const ::testing::TestParamInfo<at::Device>& info) {
  return info.param.is_cuda() ? "cuda" : "cpu";
}

}  // namespace torchamp

#define TORCHAMP_ON_EACH_DEVICE(Suite)                                            \
  INSTANTIATE_TEST_SUITE_P(On, Suite, ::testing::ValuesIn(::torchamp::devices()), \
                           ::torchamp::device_name)
