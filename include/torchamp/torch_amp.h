// torchamp under the names of Python's torch, which LibTorch does not have:
// torch::amp::GradScaler, torch::cuda::amp::autocast, … Opt-in: nothing else includes this. After
// `using namespace torch` its torch::amp hides the short name of <torchamp/amp.h>: use torchamp::.
//
// They are classes, not aliases: a program may have declared them.
#pragma once

#include <torchamp/autocast.h>
#include <torchamp/grad_scaler.h>

namespace torch {

/// torchamp's, with its constructors.
class autocast : public torchamp::autocast {
 public:
  using torchamp::autocast::autocast;
};

namespace amp {

/// torchamp's, with its constructors.
class autocast : public torch::autocast {
 public:
  using torch::autocast::autocast;
};

/// torchamp's, with its constructors.
class GradScaler : public torchamp::GradScaler {
 public:
  using torchamp::GradScaler::GradScaler;
};

}  // namespace amp

namespace cuda::amp {

/// torch::amp's, with its constructors.
class GradScaler : public torch::amp::GradScaler {
 public:
  using torch::amp::GradScaler::GradScaler;
};

/// For CUDA, with the arguments of Python's torch.cuda.amp.autocast. The weight-cast cache is off.
class autocast : public torchamp::autocast {
 public:
  /// On the current CUDA device, in this thread.
  explicit autocast(bool enabled = true, c10::ScalarType dtype = c10::ScalarType::Half,
                    bool cache_enabled = false)
      : torchamp::autocast(
            c10::DeviceType::CUDA,
            torchamp::AutocastOptions(dtype).enabled(enabled).cache_enabled(cache_enabled)) {}
};

}  // namespace cuda::amp

}  // namespace torch
