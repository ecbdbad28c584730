// The ranks of a distributed program, which skip steps together.
#pragma once

#include <cstdint>
#include <functional>

namespace at {
class Tensor;
}

namespace torchamp {

/// @addtogroup scale
/// @{

/// Makes the ranks of a program agree on overflows: one of them on any rank skips the step of all,
/// and lowers the loss scale of all.
struct Agreement {
  /// In place, the elementwise maximum over all ranks of a float32 tensor on the models' device.
  /// Null: there is one rank. It need not wait for the device.
  std::function<void(const at::Tensor&)> all_reduce_max;
  int64_t rank = 0;  ///< of this process, below `size`
  int64_t size = 1;  ///< how many ranks there are
};

/// @}

}  // namespace torchamp
