#include "cuda/image_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace torchamp::cuda {
namespace {

constexpr std::size_t kDigits = 16;

/// Owns a file descriptor.
struct File {
  int number;
  explicit File(int number) : number(number) {}
  ~File() {
    if (number >= 0) close(number);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
};

void make_folder(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(folder).parent_path(), ignored);
  mkdir(folder.c_str(), 0700);
}

bool is_own_file(int file) {
  struct stat found {};
  return fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_uid == geteuid();
}

std::string read_all(int file) {
  std::string bytes;
  char part[65536];
  for (ssize_t count; (count = read(file, part, sizeof(part))) > 0;) bytes.append(part, count);
  return bytes;
}

bool write_all(int file, const std::string& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(file, bytes.data() + done, bytes.size() - done);
    if (count <= 0) return false;
    done += count;
  }
  return true;
}

/// FNV-1a of 64 bits: names a file and finds damage. Only the user writes to the folder.
std::string digest_of(const std::string& bytes) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  char digits[kDigits + 1];
  std::snprintf(digits, sizeof digits, "%016" PRIx64, hash);
  return digits;
}

/// What precedes an image in its file.
std::string header_of(const std::string& key, const std::string& image) {
  return key + digest_of(image);
}

std::string from_environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

}  // namespace

std::string ImageStore::refusal() const {
  if (folder_.empty()) return "not configured";
  struct stat found {};
  if (lstat(folder_.c_str(), &found) != 0) return errno == ENOENT ? "" : std::strerror(errno);
  if (!S_ISDIR(found.st_mode)) return "not a folder";
  if (found.st_uid != geteuid()) return "owned by another user";
  return (found.st_mode & 077) == 0 ? "" : "accessible to other users";
}

std::string ImageStore::path_of(const std::string& key) const {
  return folder_ + "/" + digest_of(key);
}

std::string ImageStore::find(const std::string& key) const {
  if (!refusal().empty()) return "";
  const File file(open(path_of(key).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  if (file.number < 0 || !is_own_file(file.number)) return "";
  const std::string bytes = read_all(file.number);
  const std::size_t header = key.size() + kDigits;
  if (bytes.size() <= header) return "";
  std::string image = bytes.substr(header);
  return bytes.compare(0, header, header_of(key, image)) == 0 ? image : "";
}

/// Other processes see the whole file or none.
void ImageStore::keep(const std::string& key, const std::string& image) const {
  if (!folder_.empty()) make_folder(folder_);
  if (!refusal().empty()) return;
  std::string written = path_of(key) + ".XXXXXX";
  const File file(mkostemp(&written[0], O_CLOEXEC));
  if (file.number < 0) return;
  const bool is_whole = write_all(file.number, header_of(key, image) + image);
  if (is_whole && std::rename(written.c_str(), path_of(key).c_str()) == 0) return;
  unlink(written.c_str());
}

std::string image_folder() {
  const std::string chosen = from_environment("TORCHAMP_CACHE");
  if (!chosen.empty()) return chosen == "off" ? "" : chosen;
  const std::string cache = from_environment("XDG_CACHE_HOME");
  if (!cache.empty()) return cache + "/torchamp";
  const std::string home = from_environment("HOME");
  return home.empty() ? "" : home + "/.cache/torchamp";
}

const ImageStore& image_store() {
  static const auto& store = *new ImageStore(image_folder());
  return store;
}

}  // namespace torchamp::cuda
