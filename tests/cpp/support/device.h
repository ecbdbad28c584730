// Runs a test on every device: always on the CPU, and on CUDA if there is a card.
#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <vector>

namespace torchamp {

/// The devices available to this process.
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
