#include "ops/clip_factors.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/dispatch.h"

namespace torchamp {
namespace {

using at::Tensor;
using at::TensorList;

TORCH_LIBRARY_FRAGMENT(torchamp, m) {
  m.def(
      "_clip_factors(Tensor[] norms, Tensor[] factors, float max_norm, Tensor(a!) norm, "
      "Tensor(b!) coefficient, Tensor(c!)[] clipped) -> ()");
}

}  // namespace

ClipFactors clip_factors(const std::vector<NormPart>& parts, double max_norm) {
  static const auto op =
      find<void(TensorList, TensorList, double, const Tensor&, const Tensor&, TensorList)>(
          "torchamp::_clip_factors");
  const auto scalars = parts.front().norm.options();
  ClipFactors made{at::empty({}, scalars), at::empty({}, scalars), {}};
  std::vector<Tensor> norms, factors;
  for (const NormPart& part : parts) {
    norms.push_back(part.norm);
    factors.push_back(part.factor);
    made.clipped.push_back(at::empty({}, scalars));
  }
  call(op, made.norm, norms, factors, max_norm, made.norm, made.coefficient, made.clipped);
  return made;
}

}  // namespace torchamp
