// Registers _clip_factors with the dispatcher.
#include <torch/library.h>

#include "aten/fallback.h"
#include "ops/devices.h"

namespace torchamp {
namespace {

using at::Tensor;
using at::TensorList;

Clipping clipping_of(TensorList norms, TensorList factors, double max_norm, const Tensor& norm,
                     const Tensor& coefficient, TensorList clipped) {
  Clipping clipping;
  clipping.max_norm = static_cast<float>(max_norm);
  clipping.norm = norm.mutable_data_ptr<float>();
  clipping.coefficient = coefficient.mutable_data_ptr<float>();
  clipping.count = static_cast<int32>(norms.size());
  for (size_t i = 0; i < norms.size(); ++i) {
    const float* factor = factors[i].defined() ? factors[i].const_data_ptr<float>() : nullptr;
    clipping.parts[i] = {norms[i].const_data_ptr<float>(), factor,
                         clipped[i].mutable_data_ptr<float>()};
  }
  return clipping;
}

template <class Device>
void clip_factors(TensorList norms, TensorList factors, double max_norm, const Tensor& norm,
                  const Tensor& coefficient, TensorList clipped) {
  if (!Device::usable(norm.device()) || norms.size() > kClipParts) {
    return aten::clip_factors(norms, factors, max_norm, norm, coefficient, clipped);
  }
  Device(norm.device()).clip(clipping_of(norms, factors, max_norm, norm, coefficient, clipped));
}

TORCH_LIBRARY_IMPL(torchamp, CPU, m) {
  m.impl("_clip_factors", clip_factors<Cpu>);
}
TORCH_LIBRARY_IMPL(torchamp, CUDA, m) {
  m.impl("_clip_factors", clip_factors<Cuda>);
}
TORCH_LIBRARY_IMPL(torchamp, CompositeExplicitAutograd, m) {
  m.impl("_clip_factors", clip_factors<Other>);
}
/// The op writes in place, which changes no shape.
TORCH_LIBRARY_IMPL(torchamp, Meta, m) {
  m.impl("_clip_factors",
         [](TensorList, TensorList, double, const Tensor&, const Tensor&, TensorList) {});
}

}  // namespace
}  // namespace torchamp
