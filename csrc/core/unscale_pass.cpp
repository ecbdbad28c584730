#include "core/unscale_pass.h"

namespace torchamp {

using at::Tensor;

Tensor values_of(const Tensor& grad) {
  return grad.is_sparse() ? grad._values() : grad;
}

void UnscalePass::check(size_t i, const Tensor& scaled) {
  fresh_.scaled.set(i, scaled);
  fresh_.is_empty = false;
}

void UnscalePass::write(size_t i, const Tensor& scaled, const Tensor& result) {
  add(fresh_, i, scaled, result);
}

void UnscalePass::accumulate(size_t i, const Tensor& scaled, const Tensor& result) {
  add(onto_, i, scaled, result);
}

void UnscalePass::add(Lists& lists, size_t i, const Tensor& scaled, const Tensor& result) {
  kept_.push_back(values_of(scaled));
  lists.scaled.set(i, kept_.back());
  kept_.push_back(values_of(result));
  lists.results.set(i, kept_.back());
  lists.is_empty = false;
}

void UnscalePass::run(const Tensor& loss_scale, const Tensor& overflow_flags,
                      const BackwardEnd& end) const {
  const auto pass = [&](const Lists& lists, const BackwardEnd* last) {
    const bool accumulate = &lists == &onto_;
    pass_over_grads(lists.scaled, lists.results, loss_scale, accumulate, overflow_flags, last);
  };
  if (!fresh_.is_empty && !onto_.is_empty) pass(fresh_, nullptr);
  pass(onto_.is_empty ? fresh_ : onto_, &end);
}

}  // namespace torchamp
