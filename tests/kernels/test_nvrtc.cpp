// NVRTC compiles the embedded kernel program for every architecture that it supports. Needs no
// card.
#include <gtest/gtest.h>
#include <locale.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "cuda/images.h"
#include "cuda/nvrtc.h"
#include "kernels.h"
#include "remove_folder.h"

namespace torchamp::cuda {
namespace {

TEST(TargetFor, IsTheCardsOwnArchitectureOrPtxOfAnOlderOne) {
  const std::vector<int> known = {75, 80, 90, 100};
  EXPECT_EQ(target_for(80, known), "sm_80");
  EXPECT_EQ(target_for(89, known), "compute_80");
  EXPECT_EQ(target_for(130, known), "compute_100");
  EXPECT_EQ(target_for(70, known), "");
}

/// An environment variable with another value, or null: without one.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name), was_set_(std::getenv(name)) {
    if (was_set_) before_ = std::getenv(name);
    set(value);
  }
  ~Variable() { set(was_set_ ? before_.c_str() : nullptr); }
  Variable(const Variable&) = delete;

 private:
  void set(const char* value) const {
    value == nullptr ? unsetenv(name_) : setenv(name_, value, 1);
  }

  const char* const name_;
  const bool was_set_;
  std::string before_;
};

TEST(Candidates, AreTheVariableAloneIfItIsSet) {
  {
    const Variable chosen("TORCHAMP_NVRTC", "/nowhere/libnvrtc.so");
    EXPECT_EQ(nvrtc_candidates(), std::vector<std::string>{"/nowhere/libnvrtc.so"});
  }
  const Variable unset("TORCHAMP_NVRTC", nullptr);
  EXPECT_GE(nvrtc_candidates().size(), 3u);
}

#if defined(__aarch64__)
const std::string kTarget = "targets/sbsa-linux/lib", kOther = "targets/x86_64-linux/lib";
#else
const std::string kTarget = "targets/x86_64-linux/lib", kOther = "targets/sbsa-linux/lib";
#endif

TEST(Candidates, AreInEveryFolderOfAToolkitForThisProcessor) {
  char folder[] = "/tmp/torchamp-toolkit-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::filesystem::path home = folder;
  for (const std::string& libraries : {std::string("lib64"), std::string("lib"), kTarget, kOther}) {
    std::filesystem::create_directories(home / libraries);
    for (const char* name : {"libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libcudart.so.13"}) {
      std::ofstream(home / libraries / name) << "";
    }
  }
  const Variable unset("TORCHAMP_NVRTC", nullptr), toolkit("CUDA_HOME", folder);
  std::vector<std::string> found;
  for (const std::string& path : nvrtc_candidates()) {
    if (path.rfind(folder, 0) == 0) found.push_back(path.substr(home.string().size() + 1));
  }
  const std::vector<std::string> expected = {"lib64/libnvrtc.so.13", "lib/libnvrtc.so.13",
                                             kTarget + "/libnvrtc.so.13"};
  EXPECT_EQ(found, expected);
  remove_folder(home);
}

TEST(Library, MustBeNvrtc) {
  EXPECT_THROW(Nvrtc("/nowhere/libnvrtc.so"), std::runtime_error);
  EXPECT_THROW(Nvrtc("libm.so.6"), std::runtime_error);
}

class NvrtcTest : public testing::Test {
 protected:
  void SetUp() override {
    try {
      nvrtc_ = &Nvrtc::instance();
    } catch (const std::runtime_error& error) {
      GTEST_SKIP() << "the kernels are not compiled by NVRTC here: " << error.what();
    }
  }

  const Nvrtc* nvrtc_ = nullptr;
};

Program only(Kernel kernel) {
  Program program{embedded_sources(), nvrtc_options()};
  program.options.push_back("-DTORCHAMP_ONLY=" + definition(kernel));
  return program;
}

/// Compiles a single kernel.
void expect_compiled(const Nvrtc& nvrtc, int architecture, Kernel kernel) {
  const std::string target = "sm_" + std::to_string(architecture);
  const std::string cubin = nvrtc.compile(only(kernel), target);
  EXPECT_EQ(cubin.substr(1, 3), "ELF") << target;
  for (const Kernel other : all_kernels()) {
    const std::string section = ".text." + name(other) + '\0';
    EXPECT_EQ(cubin.find(section) != std::string::npos, index_of(kernel) == index_of(other))
        << target << ", " << name(kernel) << ": " << name(other);
  }
}

TEST_F(NvrtcTest, CompilesEveryKernelByItself) {
  for (const Kernel kernel : all_kernels()) expect_compiled(*nvrtc_, 90, kernel);
}

/// Uses kernels that together include every file of the program.
TEST_F(NvrtcTest, CompilesForEveryArchitecture) {
  ASSERT_FALSE(nvrtc_->architectures().empty());
  ASSERT_GE(nvrtc_->architectures().back(), kOldestCapability);
  for (const int architecture : nvrtc_->architectures()) {
    if (architecture < kOldestCapability) continue;
    for (const Function function : {Function::kUnscale, Function::kAxpby,
                                    Function::kStepAdamCompact, Function::kStepNovoGrad}) {
      expect_compiled(*nvrtc_, architecture, {function});
    }
  }
}

TEST_F(NvrtcTest, GivesPtxForCardsThatItDoesNotKnow) {
  const std::string target = "compute_" + std::to_string(nvrtc_->architectures().back());
  const std::string ptx = nvrtc_->compile(only({Function::kUnscale}), target);
  EXPECT_NE(ptx.find(".entry torchamp_unscale("), std::string::npos);
}

TEST_F(NvrtcTest, ImagesAreCompiledOnceForCardsOfOneCapability) {
  setenv("TORCHAMP_CACHE", "off", 1);
  const std::string& image = image_of({Function::kUpdateScale}, 90);
  EXPECT_EQ(&image_of({Function::kUpdateScale}, 90), &image);
  EXPECT_NE(image_of({Function::kUpdateScale}, 80), image);
  EXPECT_NE(image_of({Function::kClip}, 90), image);
}

TEST_F(NvrtcTest, KeepsTheLocale) {
  const locale_t mine = newlocale(LC_ALL_MASK, "C.UTF-8", nullptr);
  ASSERT_NE(mine, nullptr);
  for (const locale_t before : {LC_GLOBAL_LOCALE, mine}) {
    uselocale(before);
    nvrtc_->compile(only({Function::kClip}), "sm_90");
    EXPECT_EQ(uselocale(LC_GLOBAL_LOCALE), before);
  }
  freelocale(mine);
}

TEST_F(NvrtcTest, TheTrialAsksForWhatTheKernelsAskFor) {
  setenv("TORCHAMP_CACHE", "off", 1);
  EXPECT_NE(trial_image(90).find("torchamp_trial"), std::string::npos);
}

TEST_F(NvrtcTest, ThrowsTheCompilersLog) {
  try {
    nvrtc_->compile({{{"broken.cu", "int f() { return undeclared; }"}}, {}}, "sm_90");
    FAIL() << "a program with an error was compiled";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("undeclared"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace torchamp::cuda
