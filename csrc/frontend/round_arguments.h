#pragma once

#include <c10/core/ScalarType.h>
#include <torchamp/detail/export.h>

namespace torchamp {

/// While it lives, models called in this thread get floating arguments in their own dtype, with
/// the values that a cast to `dtype` leaves.
class TORCHAMP_API RoundArguments {
 public:
  explicit RoundArguments(c10::ScalarType dtype);
  ~RoundArguments();
  RoundArguments(const RoundArguments&) = delete;
  RoundArguments& operator=(const RoundArguments&) = delete;
};

}  // namespace torchamp
