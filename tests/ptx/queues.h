// Where the tests launch kernels.
#pragma once

#include <deque>
#include <vector>

#include "backends/kernels.h"
#include "cuda/table_store.h"

namespace kernel_tests {

inline const torchamp::cuda::Queue kQueue{0, nullptr};

/// Keeps tables as on a device, except during a capture.
class Tables : public torchamp::cuda::TableStore {
 public:
  const unsigned char* put(const std::vector<unsigned char>& table) override {
    ++puts;
    return is_capturing ? nullptr : kept_.emplace_back(table).data();
  }

  int puts = 0;
  bool is_capturing = false;

 private:
  std::deque<std::vector<unsigned char>> kept_;
};

}  // namespace kernel_tests
