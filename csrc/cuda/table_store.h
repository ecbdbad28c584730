#pragma once

#include <vector>

namespace torchamp::cuda {

/// Keeps tables that are too long for a parameter on a device, from launch to launch.
class TableStore {
 public:
  virtual ~TableStore() = default;

  /// Where `table` is by the time that what is queued next runs; until the next call with the same
  /// `kernel`. Null where it cannot be put there: what is captured into a graph would be read again
  /// when it has changed.
  virtual const unsigned char* put(int kernel, const std::vector<unsigned char>& table) = 0;
};

}  // namespace torchamp::cuda
