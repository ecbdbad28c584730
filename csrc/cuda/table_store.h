#pragma once

#include <vector>

namespace torchamp::cuda {

/// Keeps tables that are too long for a parameter on a device, from launch to launch.
class TableStore {
 public:
  virtual ~TableStore() = default;

  /// The address of `table` for the work queued next. Null if it cannot be put there: a captured
  /// graph would read it again after it has changed.
  virtual const unsigned char* put(const std::vector<unsigned char>& table) = 0;
};

}  // namespace torchamp::cuda
