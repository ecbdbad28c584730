// The part of MasterWeights that keeps masters as remainders of the model's parameters.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/master_weights.h>

#include <limits>

#include "aten/rounding.h"

namespace torchamp {
namespace {

using at::Tensor;

/// Shaped like `master` and in four bytes, which say so to whoever reads them.
Tensor place_of(const Tensor& master) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  return at::full({}, nan, master.options().requires_grad(false)).expand(master.sizes());
}

bool can_split(const Tensor& model, const Tensor& master) {
  const auto dtype = model.scalar_type();
  return (dtype == at::kHalf || dtype == at::kBFloat16) && master.scalar_type() == at::kFloat;
}

}  // namespace

void MasterWeights::split() {
  TORCH_CHECK(lazy_,
              "MasterWeights::split: expected masters that nobody has looked at, got eager "
              "ones");
  at::NoGradGuard no_grad;
  remainders_.resize(model_params_.size());
  for (const size_t i : separate_) {
    const Tensor &model = model_params_[i], &master = master_params_[i];
    if (remainders_[i].defined() || !can_split(model, master)) continue;
    remainders_[i] = at::zeros_like(model, at::kShort);
    remainders_[i].copy_(aten::remainders_of(master.detach(), model.detach()));
    master.set_data(place_of(master));
  }
}

void MasterWeights::join() {
  if (!is_split()) return;
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < remainders_.size(); ++i) {
    if (!remainders_[i].defined()) continue;
    master_params_[i].set_data(aten::joined(model_params_[i].detach(), remainders_[i]));
  }
  remainders_.clear();
  mark_synced();
}

Tensor MasterWeights::master_value(const Tensor& model_param) const {
  at::NoGradGuard no_grad;
  const auto known = index_.find(model_param.unsafeGetTensorImpl());
  if (known == index_.end()) return {};
  const size_t i = known->second;
  if (is_split(i)) return aten::joined(model_params_[i].detach(), remainders_[i]);
  return master_params_[i].detach().clone();
}

void MasterWeights::set_master_value(const Tensor& model_param, const Tensor& value) {
  at::NoGradGuard no_grad;
  const size_t i = index_.at(model_param.unsafeGetTensorImpl());
  if (!is_split(i)) {
    master_params_[i].copy_(value);
    return;
  }
  const Tensor wide = value.to(model_param.device(), at::kFloat);
  model_params_[i].copy_(wide);
  remainders_[i].copy_(aten::remainders_of(wide, model_params_[i].detach()));
}

/// Makes the model's value the master's.
void MasterWeights::adopt_model(size_t i) {
  if (is_split(i)) {
    remainders_[i] = at::zeros_like(model_params_[i], at::kShort);
  } else {
    master_params_[i].copy_(model_params_[i]);
  }
}

}  // namespace torchamp
