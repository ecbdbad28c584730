#include <gtest/gtest.h>
#include <torch/version.h>
#include <torchamp/build_info.h>

#include <string>

namespace torchamp {
namespace {

TEST(BuildInfo, NamesTheTorchWhoseHeadersItSaw) {
  const std::string minor =
      std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + ".";
  EXPECT_EQ(build_info().torch_version.rfind(minor, 0), 0U) << build_info().torch_version;
}

TEST(BuildInfo, NamesArchitecturesOrTheReasonForNone) {
  const bool nvcc_absent = build_info().nvcc.rfind("absent: ", 0) == 0;
  EXPECT_EQ(build_info().fatbin.empty(), nvcc_absent) << build_info().nvcc;
}

TEST(Backend, OfTheCpuNeedsNoReason) {
  const Backend found = backend(c10::Device(c10::kCPU));
  EXPECT_TRUE(found.name == "avx2" || found.name == "neon" || found.name == "portable")
      << found.name;
  EXPECT_EQ(found.reason, "");
}

TEST(Backend, OfADeviceWithoutKernelsIsAtenAndSaysWhy) {
  const Backend found = backend(c10::Device(c10::kXPU, 0));
  EXPECT_EQ(found.name, "aten");
  EXPECT_EQ(found.reason, "torchamp has kernels for the CPU and for CUDA");
}

}  // namespace
}  // namespace torchamp
