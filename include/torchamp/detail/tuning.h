// How the CUDA kernels are launched, for benchmarks that compare the ways.
#pragma once

#include <torchamp/detail/export.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torchamp {
/// @addtogroup build
/// @{

/// One choice: results do not depend on it, but for the last bits of norms.
struct TuningField {
  std::string name;              ///< as set_tuning() takes it
  int64_t value;                 ///< that the process uses
  std::vector<int64_t> choices;  ///< values that are worth comparing
};

/// All choices, with the values that the process uses.
TORCHAMP_API std::vector<TuningField> tuning_fields();

/// Sets one for the process, while no other thread launches kernels. Throws ValueError for a name
/// or a value that tuning_fields() does not list.
TORCHAMP_API void set_tuning(const std::string& name, int64_t value);

/// @}

}  // namespace torchamp
