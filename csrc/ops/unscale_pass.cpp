#include "ops/unscale_pass.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

namespace torchamp {

using at::Tensor;

Tensor values_of(const Tensor& grad) {
  return grad.is_sparse() ? grad._values() : grad;
}

Tensor empty_like(const Tensor& tensor, at::ScalarType dtype) {
  const auto options = tensor.options().dtype(dtype);
  if (!tensor.is_non_overlapping_and_dense()) return at::empty_like(tensor, options);
  return at::empty_strided(tensor.sizes(), tensor.strides(), options);
}

void UnscalePass::check(size_t i, const Tensor& scaled) {
  add(fresh_.scaled, i, scaled);
}

void UnscalePass::write(size_t i, const Tensor& scaled, const Tensor& result) {
  keep(fresh_.scaled, i, scaled);
  keep(fresh_.results, i, result);
}

void UnscalePass::accumulate(size_t i, const Tensor& scaled, const Tensor& result) {
  keep(onto_.scaled, i, scaled);
  keep(onto_.results, i, result);
}

void UnscalePass::add(Borrowed& list, size_t i, const Tensor& tensor) {
  if (list.empty()) list.resize(count_);
  list.set(i, tensor);
}

void UnscalePass::keep(Borrowed& list, size_t i, const Tensor& grad) {
  kept_.push_back(values_of(grad));
  add(list, i, kept_.back());
}

void UnscalePass::run(const Tensor& loss_scale, const Tensor& overflow_flags,
                      const BackwardEnd& end) const {
  const auto pass = [&](const Lists& lists, const BackwardEnd* last) {
    const bool accumulate = &lists == &onto_;
    pass_over_grads(lists.scaled, lists.results, loss_scale, accumulate, overflow_flags, last);
  };
  if (!fresh_.is_empty() && !onto_.is_empty()) pass(fresh_, nullptr);
  pass(onto_.is_empty() ? fresh_ : onto_, &end);
}

}  // namespace torchamp
