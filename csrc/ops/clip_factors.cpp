#include "ops/clip_factors.h"

#include <ATen/ops/empty.h>

#include "aten/fallback.h"
#include "ops/device_kernels.h"
#include "ops/dispatch.h"

namespace torchamp {
namespace {

using at::Tensor;

Clipping clipping_of(const std::vector<NormPart>& parts, double max_norm, const ClipFactors& made) {
  Clipping clipping;
  clipping.max_norm = static_cast<float>(max_norm);
  clipping.norm = made.norm.mutable_data_ptr<float>();
  clipping.coefficient = made.coefficient.mutable_data_ptr<float>();
  clipping.count = static_cast<int32>(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [norm, factor] = parts[i];
    clipping.parts[i] = {norm.const_data_ptr<float>(),
                         factor.defined() ? factor.const_data_ptr<float>() : nullptr,
                         made.clipped[i].mutable_data_ptr<float>()};
  }
  return clipping;
}

}  // namespace

ClipFactors clip_factors(const std::vector<NormPart>& parts, double max_norm) {
  const auto scalars = parts.front().norm.options();
  ClipFactors made{at::empty({}, scalars), at::empty({}, scalars), {}};
  std::vector<Tensor> norms, factors;
  for (const NormPart& part : parts) {
    norms.push_back(part.norm);
    factors.push_back(part.factor);
    made.clipped.push_back(at::empty({}, scalars));
  }
  run_below_autograd("clip_factors", made.norm, [&] {
    const DeviceKernels kernels(made.norm.device());
    if (!kernels.usable() || norms.size() > kClipParts) {
      return aten::clip_factors(norms, factors, max_norm, made.norm, made.coefficient,
                                made.clipped);
    }
    kernels.run(cpu::clip, cuda::clip, clipping_of(parts, max_norm, made));
  });
  return made;
}

}  // namespace torchamp
