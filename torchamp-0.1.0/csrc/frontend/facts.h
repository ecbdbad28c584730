#pragma once

#include <torchamp/detail/export.h>
#include <torchamp/opt_level.h>

#include <string>
#include <utility>
#include <vector>

namespace torchamp {

/// What is to be known of `properties`, without the level, as pairs of a name and a value.
TORCHAMP_API std::vector<std::pair<std::string, std::string>> facts_of(
    const Properties& properties);

}  // namespace torchamp
