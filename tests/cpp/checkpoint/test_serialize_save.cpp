// What save() leaves on disk if it fails or its process is killed. `ctest -L soak` kills more
// often.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "checkpoint/replace_file.h"
#include "checkpoints.h"
#include "errors.h"
#include "remove_folder.h"

namespace torchamp {
namespace {

namespace fs = std::filesystem;

/// A folder of one checkpoint, deleted by the destructor.
class SaveTest : public ::testing::Test {
 protected:
  SaveTest() { fs::create_directory(folder_); }
  ~SaveTest() override { remove_folder(folder_); }

  std::string path() const { return folder_ + "/run.pt"; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename());
    return names;
  }
  std::string bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  std::string folder_ = ::testing::TempDir() + "torchamp_save_" + std::to_string(getpid());
};

Training training() {
  return {at::kCPU, quiet(OptLevel::O2)};
}

/// Saves a model whose parameters all equal `number`.
void save_number(const std::string& path, int number) {
  Training run = training();
  {
    torch::NoGradGuard no_grad;
    for (const Tensor& param : run.net->parameters()) param.fill_(number);
  }
  save(run.amped, path);
}

int loaded_number(const std::string& path) {
  Training run = training();
  load(run.amped, path);
  const auto params = run.net->parameters();
  const auto number = params.front().flatten()[0].item<int>();
  for (const Tensor& param : params) EXPECT_TRUE(param.eq(number).all().item<bool>());
  return number;
}

[[noreturn]] void save_forever(const std::string& path) {
  for (int number = 1;; number = number % 1024 + 1) save_number(path, number);
}

void kill_a_save(const std::string& path, std::chrono::microseconds after) {
  const pid_t child = fork();
  if (child == 0) save_forever(path);
  std::this_thread::sleep_for(after);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(SaveTest, AKillLeavesTheFileWhole) {
  std::mt19937 random(std::random_device{}());
  std::uniform_int_distribution<int> microseconds(5000, 30000);
  std::set<int> loaded;
  save_number(path(), 0);
  for (int i = 0; i < 20; ++i) {
    kill_a_save(path(), std::chrono::microseconds(microseconds(random)));
    loaded.insert(loaded_number(path()));
  }
  EXPECT_GT(loaded.size(), 1u);
}

/// While it lives, files cannot grow beyond `size` bytes.
class FilesLimitedTo {
 public:
  explicit FilesLimitedTo(rlim_t size) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{size, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FilesLimitedTo() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(SaveTest, AFailureLeavesNothingBehind) {
  save_number(path(), 1);
  const std::string before = bytes();
  for (const size_t room : {size_t{0}, size_t{1000}, before.size() - 1}) {
    const FilesLimitedTo limited(room);
    EXPECT_EQ(message_of([&] { save_number(path(), 2); }),
              "amp::save: expected \"" + path() + "\" to have room for the checkpoint");
    EXPECT_EQ(bytes(), before);
    EXPECT_EQ(names(), std::vector<std::string>{"run.pt"});
  }
}

TEST_F(SaveTest, PermissionsAreKept) {
  save_number(path(), 1);
  fs::permissions(path(), fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read);
  const auto before = fs::status(path()).permissions();
  save_number(path(), 2);
  EXPECT_EQ(fs::status(path()).permissions(), before);
}

TEST_F(SaveTest, NobodyElseMayReadTheNewFileAtAnyTime) {
  save_number(path(), 1);
  fs::permissions(path(), fs::perms::owner_read | fs::perms::owner_write);
  checkpoint::replace_file(path(), [&](const std::string& temporary) {
    EXPECT_NE(temporary, path());
    EXPECT_EQ(fs::status(temporary).permissions(), fs::status(path()).permissions());
  });
}

TEST_F(SaveTest, ALinkIsFollowed) {
  save_number(path(), 1);
  fs::create_symlink("run.pt", path() + ".latest");
  save_number(path() + ".latest", 2);
  EXPECT_TRUE(fs::is_symlink(path() + ".latest"));
  EXPECT_EQ(loaded_number(path()), 2);
}

}  // namespace
}  // namespace torchamp
