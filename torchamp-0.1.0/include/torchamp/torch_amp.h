// torchamp under the names of Python's torch, which LibTorch does not have:
// torch::amp::GradScaler, torch::cuda::amp::autocast, … Opt-in: nothing else includes this. After
// `using namespace torch` its torch::amp hides the short name of <torchamp/amp.h>: use torchamp::.
#pragma once

#include <torchamp/autocast.h>
#include <torchamp/grad_scaler.h>

namespace torch {

using torchamp::autocast;

namespace amp {
using torchamp::autocast;
using torchamp::GradScaler;
}  // namespace amp

namespace cuda::amp {
using torchamp::GradScaler;

/// For CUDA, with the arguments of Python's torch.cuda.amp.autocast. The weight-cast cache is off.
class autocast : public torchamp::autocast {
 public:
  /// On the current CUDA device, in this thread.
  explicit autocast(bool enabled = true, c10::ScalarType dtype = c10::ScalarType::Half,
                    bool cache_enabled = false)
      : torchamp::autocast(c10::DeviceType::CUDA, dtype, enabled, cache_enabled) {}
};
}  // namespace cuda::amp

}  // namespace torch
