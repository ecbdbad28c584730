#include "checkpoint/replace_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace torchamp::checkpoint {
namespace {

namespace fs = std::filesystem;

void check(bool succeeded, const fs::path& path) {
  TORCH_CHECK(succeeded, "amp::save: expected \"", path.string(),
              "\" to be a path that can be written, got the error \"", std::strerror(errno), "\"");
}

/// A new file beside `path`. The destructor deletes it, unless it has replaced `path`.
class Replacement {
 public:
  explicit Replacement(fs::path path);
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;
  ~Replacement();

  const std::string& name() const { return name_; }
  void replace();

 private:
  fs::path path_;
  std::string name_;
  int file_ = -1;
};

/// Nobody may read the new file who may not read the old one, from its creation on.
mode_t mode_for(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status old = fs::status(path, ignored);
  if (!fs::exists(old)) return 0666;
  return (static_cast<mode_t>(old.permissions()) & 0666) | S_IRUSR | S_IWUSR;
}

Replacement::Replacement(fs::path path) : path_(std::move(path)) {
  const std::string first = path_.string() + ".tmp-" + std::to_string(getpid());
  const mode_t mode = mode_for(path_);
  // Another process of that number may have been killed, or run on another machine.
  for (int i = 0; file_ < 0 && (i == 0 || errno == EEXIST); ++i) {
    name_ = i == 0 ? first : first + "-" + std::to_string(i);
    file_ = open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  }
  check(file_ >= 0, path_);
}

Replacement::~Replacement() {
  close(file_);
  if (!name_.empty()) unlink(name_.c_str());
}

/// Some file systems cannot do this, and the file is in its place already.
void sync_folder(const fs::path& folder) {
  const int file = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  fsync(file);
  close(file);
}

void Replacement::replace() {
  std::error_code ignored;
  const fs::file_status old = fs::status(path_, ignored);
  if (fs::exists(old)) fs::permissions(name_, old.permissions());
  check(fsync(file_) == 0 && std::rename(name_.c_str(), path_.c_str()) == 0, path_);
  name_.clear();
  sync_folder(path_.parent_path());
}

}  // namespace

void replace_file(const std::string& path, const std::function<void(const std::string&)>& write) {
  std::error_code ignored;
  const fs::file_status old = fs::status(path, ignored);
  if (fs::exists(old) && !fs::is_regular_file(old)) return write(path);
  Replacement file(fs::exists(old) ? fs::canonical(path) : fs::path(path));
  write(file.name());
  file.replace();
}

}  // namespace torchamp::checkpoint
