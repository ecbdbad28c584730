#include "core/overflows.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>

#include <utility>

#include "ops/finish_backward.h"
#include "ops/outside_capture.h"

namespace torchamp::core {
namespace {

using at::Tensor;

Tensor indices_tensor(const std::vector<int64_t>& indices, at::Device device) {
  return at::tensor(indices, at::TensorOptions(at::kLong).device(device));
}

}  // namespace

bool Overflows::any() const {
  return found_inf_.defined() && found_inf_.item<float>() != 0.0f;
}

bool Overflows::may_be_any() const {
  if (!found_inf_.defined() || !found_inf_.is_cpu()) return found_inf_.defined();
  return *found_inf_.const_data_ptr<float>() != 0.0f;
}

void Overflows::add(const Tensor& found_inf, bool is_shared) {
  found_inf_ = found_inf_.defined() ? at::maximum(found_inf_, found_inf) : found_inf;
  are_shared_ |= is_shared;
}

void Overflows::clear() {
  found_inf_.reset();
  per_param_.reset();
  are_shared_ = false;
}

Tensor Overflows::of(const std::vector<int64_t>& params) const {
  if (!per_param_.defined()) return {};
  return per_param_.index_select(0, indices_tensor(params, per_param_.device()))
      .any()
      .to(at::kFloat);
}

void Overflows::append_param() {
  if (per_param_.defined()) per_param_ = at::constant_pad_nd(per_param_, {0, 1});
}

void Overflows::keep(const std::vector<int64_t>& params, bool drops_others) {
  if (found_inf_.defined() && drops_others && !are_shared_) {
    const Tensor theirs = of(params);
    if (theirs.defined()) found_inf_ = at::minimum(found_inf_, theirs);
  }
  if (per_param_.defined()) {
    per_param_ = per_param_.index_select(0, indices_tensor(params, per_param_.device()));
  }
}

Tensor Overflows::lend(BackwardEnd& end, int64_t count, at::Device device) {
  end.adds_per_tensor = per_param_.defined();
  end.per_tensor = end.adds_per_tensor
                       ? per_param_
                       : at::empty({count}, at::TensorOptions(at::kByte).device(device));
  const Tensor kept = std::exchange(pass_flags_, {});
  if (kept.defined() && kept.size(0) == kFlagsHeader + count) return kept;
  const OutsideCapture outside(device);
  return outside.kept(make_overflow_flags(count, device));
}

void Overflows::take_back(const BackwardEnd& end, const Tensor& pass_flags) {
  per_param_ = end.per_tensor;
  pass_flags_ = pass_flags;
}

}  // namespace torchamp::core
