// The host's list of the kernels.
#pragma once

#include <string>

#include "cuda/arguments.h"

namespace torchamp::cuda {

/// A function of the device.
enum class Function {
#define TORCHAMP_LIST(Name, name, Parameter) k##Name,
  TORCHAMP_KERNELS(TORCHAMP_LIST, TORCHAMP_LIST)
#undef TORCHAMP_LIST
};

/// Where a kernel finds its table.
enum class TableAt { kParameter, kSmallParameter, kDevice };
constexpr int kTables = 3;

/// A function, compiled for one place of its table.
struct Kernel {
  Function function;
  TableAt table = TableAt::kParameter;
};

struct FunctionText {
  const char* name;
  const char* parameter;  ///< or, if it has tables, its arguments
  bool has_tables;
};

constexpr FunctionText kFunctions[] = {
#define TORCHAMP_BY_TABLE(Name, name, Arguments) {#name, #Arguments, true},
#define TORCHAMP_ONE(Name, name, Parameter) {#name, #Parameter, false},
    TORCHAMP_KERNELS(TORCHAMP_BY_TABLE, TORCHAMP_ONE)
#undef TORCHAMP_BY_TABLE
#undef TORCHAMP_ONE
};
constexpr int kFunctionCount = sizeof(kFunctions) / sizeof(kFunctions[0]);

/// Its number among all kernels that there may be.
constexpr int index_of(Kernel kernel) {
  return static_cast<int>(kernel.function) * kTables + static_cast<int>(kernel.table);
}

inline std::string name(Kernel kernel) {
  constexpr const char* kSuffixes[kTables] = {"", "_small", "_resident"};
  return std::string("torchamp_") + kFunctions[static_cast<int>(kernel.function)].name +
         kSuffixes[static_cast<int>(kernel.table)];
}

/// The definition passed to kernels.cu.
inline std::string definition(Kernel kernel) {
  constexpr const char* kLaunches[kTables] = {"Launch", "SmallLaunch", "ResidentLaunch"};
  const FunctionText& text = kFunctions[static_cast<int>(kernel.function)];
  std::string parameter = text.parameter;
  if (text.has_tables)
    parameter = kLaunches[static_cast<int>(kernel.table)] + ("<" + parameter) + ">";
  return "TORCHAMP_DEFINE(" + name(kernel) + ", " + text.name + ", " + parameter + ")";
}

}  // namespace torchamp::cuda
