#include "ops/clip_factors.h"

#include <ATen/ops/empty.h>

#include "aten/fallback.h"
#include "ops/device_kernels.h"
#include "ops/dispatch.h"

namespace torchamp {
namespace {

using at::Tensor;
using at::TensorList;

constexpr const char* kClipFactorsSchema =
    "_clip_factors(Tensor[] norms, Tensor[] factors, float max_norm, Tensor(a!) norm, "
    "Tensor(b!) coefficient, Tensor(c!)[] clipped) -> ()";

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

void run_clip_factors(TensorList norms, TensorList factors, double max_norm, const Tensor& norm,
                      const Tensor& coefficient, TensorList clipped) {
  const DeviceKernels kernels(norm.device());
  if (!kernels.usable() || norms.size() > kClipParts) {
    return aten::clip_factors(norms, factors, max_norm, norm, coefficient, clipped);
  }
  kernels.run(cpu::clip, cuda::clip,
              clipping_of(norms, factors, max_norm, norm, coefficient, clipped));
}

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  define(m, kClipFactorsSchema, run_clip_factors);
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
  dispatch<run_clip_factors>(kClipFactorsSchema, made.norm, norms, factors, max_norm, made.norm,
                             made.coefficient, made.clipped);
  return made;
}

}  // namespace torchamp
