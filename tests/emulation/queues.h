// Where the tests launch kernels.
#pragma once

#include <map>
#include <vector>

#include "backends/kernels.h"
#include "cuda/table_store.h"

namespace emulation {

inline const torchamp::cuda::Queue kQueue{0, nullptr};

/// Keeps tables as on a device, except during a capture.
class Tables : public torchamp::cuda::TableStore {
 public:
  const unsigned char* put(int kernel, const std::vector<unsigned char>& table) override {
    ++puts;
    if (is_capturing) return nullptr;
    return (kept_[kernel] = table).data();
  }

  int puts = 0;
  bool is_capturing = false;

 private:
  std::map<int, std::vector<unsigned char>> kept_;
};

}  // namespace emulation
