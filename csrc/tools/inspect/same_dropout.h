// Dropout that does not depend on dtypes, so that preflight can compare levels.
#pragma once

#include <torch/library.h>
#include <torchamp/detail/export.h>

#include <string>

namespace torchamp::inspect {

/// While it lives, dropout draws 16-bit tensors the mask that it draws float32 ones, in every
/// thread. Attention and recurrent layers on CUDA, whose fused kernels have generators of their
/// own, run without dropout.
class TORCHAMP_API SameDropout {
 public:
  SameDropout();

  /// What a report says of dropout that was left out since the last one was made; "" if none was.
  static std::string note();

 private:
  torch::Library library_;
};

}  // namespace torchamp::inspect
