// What a run of all tests executed of the kernels' instructions.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "libcuda.h"

namespace {

/// The least share of all instructions, in percent, that must be executed: TORCHAMP_PTX_COVERAGE.
/// What is left is loops that only very long tensors take, and branches that the compiler does not
/// know to be impossible.
double least() {
  const char* const percent = std::getenv("TORCHAMP_PTX_COVERAGE");
  return percent == nullptr ? 0 : std::atof(percent);
}

/// The same of each kernel.
constexpr double kLeastOfEach = 55;

struct Sum {
  int executed = 0;
  int instructions = 0;
};

Sum all;

class Coverage : public testing::Environment {
 public:
  void TearDown() override {
    if (testing::GTEST_FLAG(filter) != "*") return;
    ptxCoverage([](const char* kernel, int executed, int instructions) {
      if (instructions == 1) return;  // the loader's trial, which is not launched
      EXPECT_GE(100.0 * executed, kLeastOfEach * instructions) << kernel;
      all.executed += executed;
      all.instructions += instructions;
    });
    std::printf("%.1f %% of %d instructions were executed\n",
                100.0 * all.executed / all.instructions, all.instructions);
    EXPECT_GE(100.0 * all.executed, least() * all.instructions);
  }
};

const testing::Environment* const kCoverage = testing::AddGlobalTestEnvironment(new Coverage);

}  // namespace
