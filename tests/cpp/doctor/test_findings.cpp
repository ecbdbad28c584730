#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "doctor/diagnostics.h"

namespace torchamp {
namespace {

TEST(KernelsFinding, OnlyAtensAreLessThanCouldBe) {
  EXPECT_EQ(kernels_diagnostic("cuda:0", {"fatbin", ""}).status, 0);
  EXPECT_EQ(kernels_diagnostic("cpu", {"portable", ""}).status, 0);
  EXPECT_EQ(kernels_diagnostic("cuda:0", {"aten", "nvrtc: libnvrtc was not found"}).status, 1);
}

TEST(KernelsFinding, NvrtcIsHealthyAndSaysWhyThereIsNoFatbin) {
  const Diagnostic finding = kernels_diagnostic("cuda:1", {"nvrtc", "fatbin: built without nvcc"});
  EXPECT_EQ(finding.subject, "kernels on cuda:1");
  EXPECT_EQ(finding.found, "nvrtc (fatbin: built without nvcc)");
  EXPECT_EQ(finding.status, 0);
}

TEST(Float8Finding, NeedsTorchAndTheCard) {
  EXPECT_EQ(float8_diagnostic("cuda:0", 89, true).found, "torch has them");
  EXPECT_EQ(float8_diagnostic("cuda:1", 120, true).found, "torch has them");
  const Diagnostic older = float8_diagnostic("cuda:0", 86, true);
  EXPECT_EQ(older.subject, "float8 products on cuda:0");
  EXPECT_EQ(older.found, "none: they need sm_89 or newer, and this is sm_86");
  EXPECT_EQ(older.status, 0);
  EXPECT_EQ(float8_diagnostic("cuda:0", 90, false).found,
            "none: this torch has no _scaled_mm for CUDA");
}

TEST(StoreFinding, NamesTheFolderOrWhatIsWrongWithIt) {
  std::string folder = testing::TempDir() + "torchamp_findings_XXXXXX";
  ASSERT_NE(mkdtemp(&folder[0]), nullptr);
  EXPECT_EQ(store_diagnostic(cuda::ImageStore(folder), true).found, folder);
  EXPECT_EQ(store_diagnostic(cuda::ImageStore(""), true).status, 0);

  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  const Diagnostic open = store_diagnostic(cuda::ImageStore(folder), true);
  EXPECT_EQ(open.found, "none: " + folder + " is accessible to other users");
  EXPECT_EQ(open.status, 1);
  EXPECT_NE(open.remedy, "");
  EXPECT_EQ(store_diagnostic(cuda::ImageStore(folder), false).status, 0);
  rmdir(folder.c_str());
}

}  // namespace
}  // namespace torchamp
