#pragma once

#include <functional>

#include "math/macros.h"

namespace torchamp {

/// Runs body(begin, end) over parts of [0, count) on torch's intra-op threads, in one parallel
/// region.
void parallel_for(int64 count, const std::function<void(int64 begin, int64 end)>& body);

}  // namespace torchamp
