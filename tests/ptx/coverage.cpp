// What the whole suite executed of the kernels' instructions.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "libcuda.h"

namespace {

/// The least share of each kernel's instructions that a run of all tests executes.
constexpr double kFloor = 0.95;

class Coverage : public testing::Environment {
 public:
  void TearDown() override {
    if (testing::GTEST_FLAG(filter) != "*") return;
    ptxCoverage([](const char* kernel, int executed, int instructions) {
      std::printf("%6.1f %% of the %5d instructions of %s were executed\n",
                  100.0 * executed / instructions, instructions, kernel);
      EXPECT_GE(executed, kFloor * instructions) << kernel;
    });
  }
};

const testing::Environment* const kCoverage = testing::AddGlobalTestEnvironment(new Coverage);

}  // namespace
