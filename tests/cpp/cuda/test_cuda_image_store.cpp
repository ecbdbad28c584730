// The cache folder for compiled kernels: it returns exactly what was stored, and no problem with it
// is an error.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cuda/image_store.h"
#include "remove_folder.h"

namespace torchamp::cuda {
namespace {

namespace fs = std::filesystem;

const std::string kImage = std::string(
    "\x7f"
    "ELF\0and what follows",
    22);

class ImageStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "torchamp_images_XXXXXX";
    root_ = mkdtemp(&name[0]);
    folder_ = root_ / "some" / "images";
  }
  void TearDown() override { remove_folder(root_); }

  void make_folder(mode_t mode) {
    fs::create_directories(folder_);
    chmod(folder_.c_str(), mode);
  }

  /// Its only file, after an image was stored.
  fs::path file() const { return fs::directory_iterator(folder_)->path(); }

  void rewrite(const std::string& bytes) const {
    std::ofstream(file(), std::ios::binary | std::ios::trunc) << bytes;
  }

  fs::path root_, folder_;
};

std::string bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

TEST_F(ImageStoreTest, FindsWhatAnotherProcessKept) {
  ImageStore(folder_.string()).keep("key", kImage);
  const ImageStore store(folder_.string());
  EXPECT_EQ(store.refusal(), "");
  EXPECT_EQ(store.find("key"), kImage);
  EXPECT_EQ(store.find("another key"), "");
}

TEST_F(ImageStoreTest, IsItsOwnersAlone) {
  ImageStore(folder_.string()).keep("key", kImage);
  EXPECT_EQ(fs::status(folder_).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(file()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(ImageStoreTest, LeavesNothingBesideTheImage) {
  ImageStore(folder_.string()).keep("key", kImage);
  ImageStore(folder_.string()).keep("key", kImage);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(ImageStoreTest, DoesNotFindAnAlteredImageAndReplacesIt) {
  const ImageStore store(folder_.string());
  store.keep("key", kImage);
  const std::string whole = bytes_of(file());
  std::string altered = whole, of_another_key = whole;
  altered.back() ^= 1;
  of_another_key.front() ^= 1;
  const std::string header = whole.substr(0, whole.size() - kImage.size());
  for (const std::string& bytes : {altered, of_another_key, whole.substr(0, whole.size() - 1),
                                   whole + "x", header, whole.substr(0, 2), std::string()}) {
    rewrite(bytes);
    EXPECT_EQ(store.find("key"), "") << bytes.size() << " bytes";
    store.keep("key", kImage);
    EXPECT_EQ(store.find("key"), kImage);
  }
}

TEST_F(ImageStoreTest, DoesNotTakeOneKernelForAnother) {
  const ImageStore store(folder_.string());
  store.keep("key", kImage);
  const std::string of_key = bytes_of(file());
  fs::remove(file());
  store.keep("other", kImage);
  rewrite(of_key);
  EXPECT_EQ(store.find("other"), "");
}

TEST_F(ImageStoreTest, FollowsNoLinks) {
  const ImageStore store(folder_.string());
  store.keep("key", kImage);
  const fs::path kept = file();
  fs::rename(kept, root_ / "elsewhere");
  fs::create_symlink(root_ / "elsewhere", kept);
  EXPECT_EQ(store.find("key"), "");
}

TEST_F(ImageStoreTest, TakesNoFolderThatOthersMayEnter) {
  for (const mode_t mode : {0755, 0770, 0701}) {
    make_folder(mode);
    const ImageStore store(folder_.string());
    EXPECT_EQ(store.refusal(), "accessible to other users");
    store.keep("key", kImage);
    EXPECT_TRUE(fs::is_empty(folder_));
  }
}

TEST_F(ImageStoreTest, RejectsFoldersOfOtherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  make_folder(0700);
  ASSERT_EQ(chown(folder_.c_str(), 12345, 12345), 0);
  EXPECT_EQ(ImageStore(folder_.string()).refusal(), "owned by another user");
}

TEST_F(ImageStoreTest, TakesNoLinkToAFolderAndNoFile) {
  fs::create_directories(root_ / "some");
  fs::create_directory_symlink(root_, folder_);
  EXPECT_EQ(ImageStore(folder_.string()).refusal(), "not a folder");
  std::ofstream(root_ / "file") << "text";
  EXPECT_EQ(ImageStore((root_ / "file").string()).refusal(), "not a folder");
}

TEST_F(ImageStoreTest, KeepsNothingWhereNoFolderCanBe) {
  std::ofstream(root_ / "file") << "text";
  const ImageStore store((root_ / "file" / "images").string());
  store.keep("key", kImage);
  EXPECT_EQ(store.find("key"), "");
}

TEST_F(ImageStoreTest, KeepsNothingWhereNothingCanBeWritten) {
  const ImageStore store("/proc/torchamp");
  store.keep("key", kImage);
  EXPECT_EQ(store.find("key"), "");
}

TEST_F(ImageStoreTest, DoesNotFindInAFolderThatWasOpenedToOthers) {
  const ImageStore store(folder_.string());
  store.keep("key", kImage);
  chmod(folder_.c_str(), 0777);
  EXPECT_EQ(store.find("key"), "");
}

TEST_F(ImageStoreTest, MakesNoFolderBeforeThereIsAnImage) {
  const ImageStore store(folder_.string());
  EXPECT_EQ(store.refusal(), "");
  EXPECT_EQ(store.find("key"), "");
  EXPECT_FALSE(fs::exists(root_ / "some"));
}

TEST_F(ImageStoreTest, WithoutAFolderKeepsNothing) {
  const ImageStore store("");
  EXPECT_EQ(store.refusal(), "not configured");
  store.keep("key", kImage);
  EXPECT_EQ(store.find("key"), "");
}

/// Sets the three variables that determine the folder; null unsets a variable.
std::string folder_for(const char* chosen, const char* cache, const char* home) {
  const auto set = [](const char* name, const char* value) {
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  };
  set("TORCHAMP_CACHE", chosen);
  set("XDG_CACHE_HOME", cache);
  set("HOME", home);
  return image_folder();
}

TEST(ImageFolder, IsChosenByTheEnvironment) {
  EXPECT_EQ(folder_for("/chosen", "/cache", "/home/me"), "/chosen");
  EXPECT_EQ(folder_for("off", "/cache", "/home/me"), "");
  EXPECT_EQ(folder_for("", "/cache", "/home/me"), "/cache/torchamp");
  EXPECT_EQ(folder_for(nullptr, "/cache", "/home/me"), "/cache/torchamp");
  EXPECT_EQ(folder_for(nullptr, "", "/home/me"), "/home/me/.cache/torchamp");
  EXPECT_EQ(folder_for(nullptr, nullptr, nullptr), "");
}

}  // namespace
}  // namespace torchamp::cuda
