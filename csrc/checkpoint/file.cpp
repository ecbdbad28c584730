#include "checkpoint/file.h"

#include <ATen/EmptyTensor.h>
#include <caffe2/serialize/crc_alt.h>
#include <caffe2/serialize/inline_container.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/pickler.h>
#include <torch/csrc/jit/serialization/unpickler.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <istream>
#include <ostream>
#include <tuple>
#include <unordered_map>

namespace torchamp::checkpoint {

using at::Tensor;
using c10::IValue;
using Reader = caffe2::serialize::PyTorchStreamReader;

namespace {

/// torch's names of the zip's records: data.pkl, data/0, data/1, …
constexpr const char* kData = "data";

/// The bytes of a record's header: a file's name at most, and torch's padding to multiples of 64.
constexpr size_t kLongestHeader = 1024;

uint16_t number_at(const std::string& bytes, size_t offset) {
  uint16_t number = 0;
  if (offset + sizeof(number) <= bytes.size()) {
    std::memcpy(&number, bytes.data() + offset, sizeof(number));
  }
  return number;
}

/// Whether the bytes before a record's end with its header, in APPNOTE.TXT's terms a local file
/// header: a damaged offset or length may lead to another record.
bool end_with_header_of(const std::string& name, const std::string& bytes) {
  constexpr size_t kFixed = 30, kNameLength = 26;
  const size_t begin = bytes.rfind("PK\x03\x04");
  if (begin == std::string::npos) return false;
  const std::string header = bytes.substr(begin), ending = "/" + name;
  const size_t name_end = kFixed + number_at(header, kNameLength);
  size_t end = name_end;
  while (end < header.size()) end += 4 + number_at(header, end + 2);  // the extra fields
  return end == header.size() && name_end >= kFixed + ending.size() &&
         header.compare(name_end - ending.size(), ending.size(), ending) == 0;
}

std::string read_bytes(std::istream& file, size_t offset, size_t size) {
  std::string bytes(size, '\0');
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(bytes.data(), static_cast<std::streamsize>(size));
  return bytes;
}

/// The bytes of a record. torch's reader ignores the checksum that its writer appends to them, in
/// a data descriptor; it is 0 in files that were written without checksums.
std::tuple<at::DataPtr, size_t> read_record(Reader& zip, std::istream& file,
                                            const std::string& name) {
  const size_t start = zip.getRecordOffset(name), bytes = zip.getRecordSize(name);
  const size_t before = std::min<size_t>(start, kLongestHeader);
  const std::string descriptor = read_bytes(file, start + bytes, 8);
  uint32_t checksum = 0;
  std::memcpy(&checksum, descriptor.data() + 4, sizeof(checksum));
  // First, since a damaged size may be one of terabytes.
  TORCH_CHECK(end_with_header_of(name, read_bytes(file, start - before, before)) &&
                  (descriptor.substr(0, 4) == "PK\x07\x08" || bytes == 0),
              "its record \"", name, "\" is damaged: its size differs");
  auto [data, size] = zip.getRecord(name);
  TORCH_CHECK(size == 0 || checksum == 0 || checksum == crc32_fast(data.get(), size),
              "its record \"", name, "\" is damaged: the checksum differs");
  return {std::move(data), size};
}

/// Where each record was read to, and how many bytes it had.
using Records = std::unordered_map<const void*, size_t>;

/// Pickles contain the sizes of their tensors, which are not yet checked against the file.
void check_bounds(const Tensor& tensor, const Records& records) {
  if (!tensor.defined() || tensor.numel() == 0) return;
  const auto strides = tensor.strides();
  const bool is_dense = tensor.layout() == at::kStrided &&
                        std::all_of(strides.begin(), strides.end(), [](auto s) { return s >= 0; });
  const auto record = is_dense ? records.find(tensor.storage().data()) : records.end();
  TORCH_CHECK(record != records.end() && tensor.storage_offset() >= 0 &&
                  at::detail::computeStorageNbytes(tensor.sizes(), strides, tensor.itemsize(),
                                                   tensor.storage_offset()) <= record->second,
              "a tensor of sizes ", tensor.sizes(), " is longer than its record");
}

void check_bounds(const IValue& value, const Records& records) {
  if (value.isTensor()) {
    check_bounds(value.toTensor(), records);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) check_bounds(entry.value(), records);
  } else if (value.isList() || value.isTuple()) {
    for (const IValue& each : as_list(value, "")) check_bounds(each, records);
  }
}

IValue unpickle(Reader& zip, std::istream& file) {
  const auto [pickle, size] = read_record(zip, file, std::string(kData) + ".pkl");
  size_t position = 0;
  const auto read = [&, data = static_cast<const char*>(pickle.get()), end = size](char* buffer,
                                                                                   size_t wanted) {
    const size_t given = std::min(wanted, end - position);
    std::memcpy(buffer, data + position, given);
    position += given;
    return given;
  };
  Records records;
  const auto read_tensor = [&](const std::string& name) {
    auto [data, bytes] = read_record(zip, file, std::string(kData) + "/" + name);
    records[data.get()] = bytes;
    return std::move(data);
  };
  torch::jit::Unpickler unpickler(read, /*type_resolver=*/nullptr, /*obj_loader=*/nullptr,
                                  read_tensor, at::Device(at::kCPU));
  unpickler.set_version(zip.version());
  IValue value = unpickler.parse_ivalue();
  check_bounds(value, records);
  return value;
}

}  // namespace

void write_file(const Tree& tree, std::ostream& file) {
  std::string pickle;
  const auto append = [&](const char* data, size_t size) { pickle.append(data, size); };
  // Tags of the lists' and dictionaries' types would be calls, which Python refuses.
  torch::jit::Pickler pickler(append, nullptr, nullptr, nullptr, nullptr,
                              /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(tree);
  pickler.stop();
  caffe2::serialize::PyTorchStreamWriter zip([&](const void* data, size_t size) {
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
    return size;  // after an error, the zip's destructor would throw; the stream keeps it
  });
  torch::jit::writeArchiveAndTensors(kData, pickle.data(), pickle.size(), pickler.tensorData(),
                                     zip);
  zip.writeEndOfFile();
}

Tree read_file(std::istream& file, const std::string& name) {
  const char* problem = "\" to be a file that amp::save wrote, got one that cannot be read: ";
  try {
    Reader zip(&file);
    TORCH_CHECK(!zip.hasRecord("constants.pkl"),
                "it is one of LibTorch's own archives, which torch::load reads");
    return as_tree(unpickle(zip, file), "the file");
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "amp::load: expected \"", name, problem, error.what_without_backtrace());
  } catch (const std::exception& error) {
    TORCH_CHECK(false, "amp::load: expected \"", name, problem, error.what());
  }
}

}  // namespace torchamp::checkpoint
