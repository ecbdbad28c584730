#pragma once

#include <torchamp/detail/export.h>
#include <torchamp/opt_level.h>

#include <string>
#include <utility>
#include <vector>

namespace torchamp {

/// "float16", "bfloat16", "float32"; others as LibTorch names them.
std::string dtype_name(at::ScalarType dtype);

/// The lines that describe `properties`, without the level: pairs of a name and a value.
TORCHAMP_API std::vector<std::pair<std::string, std::string>> describe(
    const Properties& properties);

}  // namespace torchamp
