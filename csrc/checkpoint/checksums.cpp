#include "checkpoint/checksums.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/crc_alt.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <istream>
#include <string>
#include <vector>

namespace torchamp::checkpoint {
namespace {

// The structures of a zip, in APPNOTE.TXT's terms: the sizes of their fixed parts, and the offsets
// of their fields.
constexpr uint64_t kEndSize = 22, kLocatorSize = 20, kEnd64Size = 56, kEntrySize = 46,
                   kLocalSize = 30;
constexpr uint32_t kLocatorMark = 0x07064b50, kEnd64Mark = 0x06064b50, kEntryMark = 0x02014b50,
                   kLocalMark = 0x04034b50;
constexpr uint32_t kInExtra = 0xffffffff;  ///< the value is a 64-bit one, in the extra field
constexpr uint32_t kFolder = 0x10;  ///< torch's reader leaves such a record's memory uninitialized
constexpr size_t kChunk = 1 << 20;

/// A record, as the zip's directory has it.
struct Record {
  std::string name;
  uint32_t checksum;
  uint64_t size;
  uint64_t header;  ///< offset of its local header
};

void check_layout(bool fits) {
  TORCH_CHECK(fits, "its directory is damaged");
}

/// The little-endian number at an offset.
template <class Number>
Number number_at(const std::string& bytes, size_t offset) {
  check_layout(offset + sizeof(Number) <= bytes.size());
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof(Number));
  return number;
}

class Zip {
 public:
  explicit Zip(std::istream& file) : file_(file) {
    file_.seekg(0, std::ios::end);
    size_ = static_cast<uint64_t>(file_.tellg());
  }

  std::vector<Record> records();
  void check(const Record& record);

 private:
  std::string read(uint64_t offset, uint64_t size);
  /// Reads a structure that starts with `mark`.
  std::string read(uint64_t offset, uint64_t size, uint32_t mark);
  uint64_t data_of(const Record& record);
  uint32_t checksum_of(uint64_t offset, uint64_t size);

  std::istream& file_;
  uint64_t size_;
};

std::string Zip::read(uint64_t offset, uint64_t size) {
  TORCH_CHECK(size <= size_ && offset <= size_ - size, "it is cut off or its directory is damaged");
  std::string bytes(size, '\0');
  file_.seekg(static_cast<std::streamoff>(offset));
  TORCH_CHECK(file_.read(bytes.data(), static_cast<std::streamsize>(size)), "it cannot be read");
  return bytes;
}

std::string Zip::read(uint64_t offset, uint64_t size, uint32_t mark) {
  std::string bytes = read(offset, size);
  check_layout(number_at<uint32_t>(bytes, 0) == mark);
  return bytes;
}

/// Replaces each value that is in the extra field, where they have this order.
void read_extra(const std::string& extra, const std::vector<uint64_t*>& values) {
  constexpr uint16_t kZip64 = 1;
  size_t next = 4;
  for (uint64_t* value : values) {
    if (*value != kInExtra) continue;
    check_layout(number_at<uint16_t>(extra, 0) == kZip64);
    *value = number_at<uint64_t>(extra, next);
    next += sizeof(uint64_t);
  }
}

/// The entry at `offset` of the directory; moves `offset` past it.
Record read_entry(const std::string& directory, size_t& offset) {
  check_layout(number_at<uint32_t>(directory, offset) == kEntryMark);
  const auto method = number_at<uint16_t>(directory, offset + 10);
  const auto attributes = number_at<uint32_t>(directory, offset + 38);
  const auto name_size = number_at<uint16_t>(directory, offset + 28);
  const auto extra_size = number_at<uint16_t>(directory, offset + 30);
  const auto comment_size = number_at<uint16_t>(directory, offset + 32);
  Record record{{},
                number_at<uint32_t>(directory, offset + 16),
                number_at<uint32_t>(directory, offset + 24),
                number_at<uint32_t>(directory, offset + 42)};
  uint64_t stored_size = number_at<uint32_t>(directory, offset + 20);
  const size_t end = offset + kEntrySize + name_size + extra_size + comment_size;
  check_layout(end <= directory.size());
  record.name = directory.substr(offset + kEntrySize, name_size);
  read_extra(directory.substr(offset + kEntrySize + name_size, extra_size),
             {&record.size, &stored_size, &record.header});
  TORCH_CHECK(method == 0,
              "it is compressed, as are LibTorch's own archives, which torch::load reads");
  check_layout(stored_size == record.size && !(attributes & kFolder));
  offset = end;
  return record;
}

std::vector<Record> Zip::records() {
  check_layout(size_ >= kEndSize + kLocatorSize);
  const std::string locator = read(size_ - kEndSize - kLocatorSize, kLocatorSize, kLocatorMark);
  const std::string end = read(number_at<uint64_t>(locator, 8), kEnd64Size, kEnd64Mark);
  const auto count = number_at<uint64_t>(end, 32);
  const std::string directory =
      read(number_at<uint64_t>(end, 48), number_at<uint64_t>(end, 40), kEntryMark);
  std::vector<Record> records;
  for (size_t offset = 0; offset < directory.size();) {
    records.push_back(read_entry(directory, offset));
  }
  check_layout(records.size() == count);
  return records;
}

/// The offset of the record's bytes, after its local header.
uint64_t Zip::data_of(const Record& record) {
  const std::string header = read(record.header, kLocalSize + record.name.size(), kLocalMark);
  check_layout(number_at<uint16_t>(header, 26) == record.name.size() &&
               header.substr(kLocalSize) == record.name);
  return record.header + header.size() + number_at<uint16_t>(header, 28);
}

uint32_t Zip::checksum_of(uint64_t offset, uint64_t size) {
  uint32_t checksum = 0;
  for (uint64_t done = 0; done < size; done += kChunk) {
    const std::string chunk = read(offset + done, std::min<uint64_t>(kChunk, size - done));
    checksum = crc32_fast(chunk.data(), chunk.size(), checksum);
  }
  return checksum;
}

void Zip::check(const Record& record) {
  TORCH_CHECK(checksum_of(data_of(record), record.size) == record.checksum, "its record \"",
              record.name, "\" is damaged: the checksum differs");
}

}  // namespace

void check_checksums(std::istream& file) {
  Zip zip(file);
  const auto records = zip.records();
  const bool has_none = std::all_of(records.begin(), records.end(),
                                    [](const Record& record) { return record.checksum == 0; });
  if (has_none) return;
  for (const Record& record : records) zip.check(record);
}

}  // namespace torchamp::checkpoint
