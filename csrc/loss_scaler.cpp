#include <ATen/ops/full.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/zeros.h>
#include <torchamp/loss_scaler.h>

#include <algorithm>
#include <cmath>

#include "cuda/module.h"

namespace torchamp {
namespace {

double initial_scale(const LossScalerOptions& options) {
  return options.loss_scale.fixed.value_or(std::min(options.init_scale, options.rule.max_scale));
}

void check_positive(double value, const char* function, const char* argument) {
  TORCH_CHECK_VALUE(std::isfinite(value) && value > 0, function, ": expected ", argument,
                    " to be positive and finite, got ", value);
}

}  // namespace

LossScaler::LossScaler(LossScalerOptions options, at::Device device) : options_(options) {
  check_positive(initial_scale(options), "LossScaler", "the initial scale");
  const auto floats = at::TensorOptions().device(device).dtype(at::kFloat);
  const auto ints = floats.dtype(at::kInt);
  loss_scale_ = at::full({}, initial_scale(options), floats);
  growth_tracker_ = at::zeros({}, ints);
  hysteresis_tracker_ = at::full({}, options.rule.hysteresis, ints);
  found_inf_ = at::zeros({}, floats);
  if (loss_scale_.is_cuda()) cuda::load(loss_scale_.get_device());
}

at::Tensor LossScaler::scale(const at::Tensor& loss) const {
  TORCH_CHECK_TYPE(loss.defined() && loss.is_floating_point(),
                   "scale_loss: expected loss to be a floating-point tensor, got ",
                   loss.defined() ? loss.toString() : "none");
  const at::Tensor wide = loss.to(at::kFloat);
  return is_identity() ? wide : wide.mul(loss_scale_.to(wide.device(), /*non_blocking=*/true));
}

at::Tensor LossScaler::inv_scale() const {
  return loss_scale_.reciprocal();
}

void LossScaler::clear_found_inf() {
  found_inf_.zero_();
}

void LossScaler::update() {
  if (!dynamic()) return;
  ops::update_scale(loss_scale_, growth_tracker_, hysteresis_tracker_, found_inf_, options_.rule);
}

double LossScaler::loss_scale() const {
  return loss_scale_.item<float>();
}

void LossScaler::set_loss_scale(double value) {
  check_positive(value, "set_loss_scale", "value");
  loss_scale_.fill_(value);
  if (!dynamic()) options_.loss_scale = LossScale(value);
}

LossScalerState LossScaler::state() const {
  return {loss_scale(), growth_tracker_.item<int32_t>(), hysteresis_tracker_.item<int32_t>()};
}

void LossScaler::load_state(const LossScalerState& state) {
  set_loss_scale(state.loss_scale);
  growth_tracker_.fill_(state.growth_tracker);
  hysteresis_tracker_.fill_(state.hysteresis_tracker);
}

}  // namespace torchamp
