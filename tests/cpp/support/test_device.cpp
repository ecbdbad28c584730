#include "device.h"

namespace torchamp {
namespace {

TEST(Device, CudaIsTestedToo) {
  if (devices().size() == 1) {
    GTEST_SKIP() << "no CUDA device: all C++ tests of this build run on the CPU only";
  }
  EXPECT_TRUE(devices().back().is_cuda());
}

}  // namespace
}  // namespace torchamp
