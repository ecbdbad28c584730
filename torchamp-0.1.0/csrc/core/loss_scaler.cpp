#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/loss_scaler.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/backward_report.h"
#include "core/ranks.h"
#include "cuda/module.h"
#include "ops/memory.h"

namespace torchamp {
namespace {

double initial_scale(const LossScalerOptions& options) {
  return options.loss_scale.fixed.value_or(std::min(options.init_scale, options.rule.max_scale));
}

bool is_positive(double value) {
  const auto rounded = static_cast<float>(value);
  return std::isfinite(rounded) && rounded > 0;
}

void check_positive(double value, const char* function, const char* argument) {
  TORCH_CHECK_VALUE(is_positive(value), function, ": expected ", argument,
                    " to be positive and finite, got ", value);
}

void check_rule(const ops::ScaleRule& rule) {
  TORCH_CHECK_VALUE(0 <= rule.min_scale && rule.min_scale <= rule.max_scale,
                    "LossScaler: expected min_scale to be between 0 and max_scale, got ",
                    rule.min_scale, " and a max_scale of ", rule.max_scale);
}

bool has_32_bits(int64_t value) {
  return value == static_cast<int32_t>(value);
}

}  // namespace

bool ScaleState::is_valid() const {
  return is_positive(loss_scale) && has_32_bits(growth_tracker) && has_32_bits(hysteresis_tracker);
}

ScaleSnapshot::ScaleSnapshot(const at::Tensor& loss_scale)
    : loss_scale_(loss_scale.variable_data()) {}

ScaleSnapshot::~ScaleSnapshot() {
  if (is_in_graph()) keep();
}

void ScaleSnapshot::keep() {
  loss_scale_.set_data(loss_scale_.clone());
}

LossScaler::LossScaler(LossScalerOptions options, at::Device device) : kind_(options.loss_scale) {
  check_positive(initial_scale(options), "LossScaler", "the initial scale");
  check_rule(options.rule);
  const auto floats = at::TensorOptions().device(device).dtype(at::kFloat);
  const auto ints = floats.dtype(at::kInt);
  scale_ = {at::full({}, initial_scale(options), floats), at::zeros({}, ints),
            at::full({}, options.rule.hysteresis, ints), options.rule};
  found_inf_ = at::zeros({}, floats);
  reported_scale_.value = static_cast<float>(initial_scale(options));
  if (device.is_cuda()) cuda::load(scale_.loss_scale.get_device());
}

at::Tensor LossScaler::scale(const at::Tensor& loss, const ScaleSnapshot* by) const {
  TORCH_CHECK_TYPE(loss.defined() && loss.is_floating_point(),
                   "scale_loss: expected loss to be a floating-point tensor, got ",
                   loss.defined() ? loss.toString() : "none");
  check_memory("scale_loss", "loss", loss, /*takes_meta=*/false);
  const at::Tensor wide = loss.to(at::kFloat);
  if (is_identity()) return wide;
  const at::Tensor& factor = by != nullptr ? by->loss_scale() : scale_.loss_scale;
  return wide.mul(factor.to(wide.device(), /*non_blocking=*/true));
}

at::Tensor LossScaler::inv_scale() const {
  return scale_.loss_scale.reciprocal();
}

std::shared_ptr<const ScaleSnapshot> LossScaler::snapshot() {
  const auto is_gone = [](const std::weak_ptr<ScaleSnapshot>& snapshot) {
    return snapshot.expired();
  };
  snapshots_.erase(std::remove_if(snapshots_.begin(), snapshots_.end(), is_gone), snapshots_.end());
  auto snapshot = std::make_shared<ScaleSnapshot>(scale_.loss_scale);
  snapshots_.push_back(snapshot);
  return snapshot;
}

const DynamicScale& LossScaler::about_to_move(const ScaleSnapshot* but) {
  for (const auto& each : std::exchange(snapshots_, {})) {
    const auto snapshot = each.lock();
    if (snapshot == nullptr || (snapshot.get() == but && !snapshot->is_in_graph())) continue;
    snapshot->keep();
  }
  return scale_;
}

void LossScaler::clear_found_inf() {
  found_inf_ = at::zeros_like(found_inf_);
}

void DeferredOverflow::add(const at::Tensor& found_inf) {
  found_inf_ = found_inf_.defined() ? at::maximum(found_inf_, found_inf) : found_inf;
}

void LossScaler::end_backward(const at::Tensor& found_inf, bool moved,
                              std::shared_ptr<const BackwardReport> report) {
  found_inf_ = found_inf;
  last_report_ = std::move(report);
  if (moved) reported_scale_ = {std::nullopt, last_report_};
}

void LossScaler::update() {
  update(found_inf_);
  clear_found_inf();
}

void LossScaler::update(const at::Tensor& found_inf) {
  if (!dynamic()) return;
  reported_scale_ = {};
  about_to_move();
  ops::update_scale(scale_.loss_scale, scale_.growth_tracker, scale_.hysteresis_tracker, found_inf,
                    scale_.rule);
}

double LossScaler::loss_scale() const {
  return scale_.loss_scale.item<float>();
}

void LossScaler::set_loss_scale(double value) {
  check_positive(value, "set_loss_scale", "value");
  about_to_move();
  scale_.loss_scale.fill_(value);
  reported_scale_ = {static_cast<float>(value), nullptr};
  if (!dynamic()) kind_ = LossScale(value);
}

ScaleState LossScaler::state() const {
  return {loss_scale(), scale_.growth_tracker.item<int32_t>(),
          scale_.hysteresis_tracker.item<int32_t>()};
}

void LossScaler::load_state(const ScaleState& state) {
  TORCH_CHECK_VALUE(state.is_valid(),
                    "load_state: expected loss_scale to be positive and finite, and the trackers "
                    "to have 32 bits, got ",
                    state.loss_scale, ", ", state.growth_tracker, " and ",
                    state.hysteresis_tracker);
  set_loss_scale(state.loss_scale);
  scale_.growth_tracker.fill_(state.growth_tracker);
  scale_.hysteresis_tracker.fill_(state.hysteresis_tracker);
  is_compared_ = false;
}

void LossScaler::set_agreement(Agreement agreement) {
  agreement_ = std::move(agreement);
  is_compared_ = false;
}

void LossScaler::compare_ranks() {
  if (is_compared_ || !agrees() || may_be_captured(device())) return;
  check_same_on_all_ranks(agreement_, state(), device());
  is_compared_ = true;
}

}  // namespace torchamp
