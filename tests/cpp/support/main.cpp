// The main function of all test programs. A program invoked by a test file's name, such as
// test_cast, runs only that file's tests, filtered by --gtest_filter; under any other name it runs
// all tests.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

namespace {

using TestVisitor = std::function<void(const testing::TestSuite&, const testing::TestInfo&)>;

void for_each_test(const TestVisitor& visit) {
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const testing::TestSuite& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) visit(suite, *suite.GetTestInfo(j));
  }
}

std::string stem_of(const char* path) {
  return std::filesystem::path(path).stem().string();
}

/// A filter of the tests in files other than `stem`.cpp; empty if that file has no test.
std::string tests_elsewhere(const std::string& stem) {
  std::string elsewhere;
  bool found = false;
  for_each_test([&](const testing::TestSuite& suite, const testing::TestInfo& test) {
    if (stem_of(test.file()) == stem) {
      found = true;
    } else {
      elsewhere += std::string(":") + suite.name() + "." + test.name();
    }
  });
  return found ? elsewhere : "";
}

/// Excludes the tests of other files from --gtest_filter.
void keep_tests_of(const std::string& stem) {
  std::string& filter = testing::GTEST_FLAG(filter);
  const bool has_exclusions = filter.find('-') != std::string::npos;
  const std::string elsewhere = tests_elsewhere(stem);
  if (!elsewhere.empty()) filter += has_exclusions ? elsewhere : "-" + elsewhere.substr(1);
}

/// LibTorch's generators start with a different seed in each process.
class SameNumbersInEveryRun : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { at::manual_seed(0); }
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest::GetInstance()->listeners().Append(new SameNumbersInEveryRun);
  keep_tests_of(stem_of(argv[0]));
  return RUN_ALL_TESTS();
}
