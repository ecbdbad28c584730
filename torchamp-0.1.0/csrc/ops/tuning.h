// How the CUDA kernels are launched, for benchmarks that compare the variants.
#pragma once

#include <torchamp/detail/export.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torchamp {
/// @addtogroup build
/// @{

/// One setting: results do not depend on it, except the last bits of norms.
struct TuningField {
  std::string name;              ///< for set_tuning()
  int64_t value;                 ///< in use by the process
  std::vector<int64_t> choices;  ///< values to compare
};

/// All settings, with the values in use by the process.
TORCHAMP_API std::vector<TuningField> tuning_fields();

/// Sets one for the process, while no other thread launches kernels. Throws ValueError for a name
/// or a value that tuning_fields() does not list.
TORCHAMP_API void set_tuning(const std::string& name, int64_t value);

/// @}

}  // namespace torchamp
