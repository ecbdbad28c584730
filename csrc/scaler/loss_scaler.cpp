#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torchamp/loss_scaler.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ops/backward_report.h"
#include "ops/device_kernels.h"
#include "ops/finish_backward.h"
#include "ops/memory.h"
#include "scaler/ranks.h"
#include "scaler/scale_snapshot.h"

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

at::Tensor scaled(const at::Tensor& loss, const LossScaler& scaler, const at::Tensor& factor) {
  TORCH_CHECK_TYPE(loss.defined() && loss.is_floating_point(),
                   "scale_loss: expected loss to be a floating-point tensor, got ",
                   loss.defined() ? loss.toString() : "none");
  check_memory("scale_loss", "loss", loss, /*takes_meta=*/false);
  const at::Tensor wide = loss.to(at::kFloat);
  if (scaler.is_identity()) return wide;
  return wide.mul(factor.to(wide.device(), /*non_blocking=*/true));
}

}  // namespace

bool ScaleState::is_valid() const {
  return is_positive(loss_scale) && has_32_bits(growth_tracker);
}

ScaleSnapshot::ScaleSnapshot(const at::Tensor& loss_scale)
    : loss_scale_(loss_scale.variable_data()) {}

ScaleSnapshot::~ScaleSnapshot() {
  if (is_in_graph()) keep();
}

void ScaleSnapshot::keep() {
  loss_scale_.set_data(loss_scale_.clone());
}

void DeferredOverflow::add(const at::Tensor& found_inf) {
  found_inf_ = found_inf_.defined() ? at::maximum(found_inf_, found_inf) : found_inf;
}

/// A scaler's state.
struct LossScaler::Impl {
  LossScale kind;  ///< dynamic, or the fixed factor
  DynamicScale scale;
  at::Tensor found_inf;
  std::shared_ptr<DeferredOverflow> deferred = std::make_shared<DeferredOverflow>();
  std::shared_ptr<const BackwardReport> last_report = nullptr;
  ReportedScale reported_scale = {};
  std::vector<std::weak_ptr<ScaleSnapshot>> snapshots = {};
  Agreement agreement = {};
  bool is_compared = false;  ///< compare_ranks() has nothing to do
};

LossScaler::Impl& LossScaler::impl() const {
  TORCH_CHECK(impl_ != nullptr,
              "LossScaler: expected a scaler that holds its scale, got one that was moved from");
  return *impl_;
}

LossScaler::~LossScaler() = default;
LossScaler::LossScaler(LossScaler&&) noexcept = default;
LossScaler& LossScaler::operator=(LossScaler&&) noexcept = default;

LossScaler::LossScaler(LossScalerOptions options, at::Device device) {
  check_positive(initial_scale(options), "LossScaler", "the initial scale");
  check_rule(options.rule);
  const auto floats = at::TensorOptions().device(device).dtype(at::kFloat);
  const DynamicScale scale = {at::full({}, initial_scale(options), floats),
                              at::zeros({}, floats.dtype(at::kInt)), options.rule};
  impl_ = std::make_unique<Impl>(Impl{options.loss_scale, scale, at::zeros({}, floats)});
  impl().reported_scale.value = static_cast<float>(initial_scale(options));
  has_kernels(impl().scale.loss_scale.device());  // chosen before the first backward
}

bool LossScaler::dynamic() const {
  return impl().kind.dynamic();
}

bool LossScaler::is_identity() const {
  return impl().kind.fixed == 1.0;
}

at::Tensor LossScaler::scale(const at::Tensor& loss) const {
  return scaled(loss, *this, impl().scale.loss_scale);
}

at::Tensor LossScaler::scale(const at::Tensor& loss, const ScaleSnapshot& by) const {
  return scaled(loss, *this, by.loss_scale());
}

at::Tensor LossScaler::inv_scale() const {
  return impl().scale.loss_scale.reciprocal();
}

std::shared_ptr<const ScaleSnapshot> LossScaler::snapshot() {
  const auto is_gone = [](const std::weak_ptr<ScaleSnapshot>& snapshot) {
    return snapshot.expired();
  };
  impl().snapshots.erase(std::remove_if(impl().snapshots.begin(), impl().snapshots.end(), is_gone),
                         impl().snapshots.end());
  auto snapshot = std::make_shared<ScaleSnapshot>(impl().scale.loss_scale);
  impl().snapshots.push_back(snapshot);
  return snapshot;
}

const DynamicScale& LossScaler::about_to_move(const ScaleSnapshot* but) {
  for (const auto& each : std::exchange(impl().snapshots, {})) {
    const auto snapshot = each.lock();
    if (snapshot == nullptr || (snapshot.get() == but && !snapshot->is_in_graph())) continue;
    snapshot->keep();
  }
  return impl().scale;
}

const at::Tensor& LossScaler::found_inf() const {
  return impl().found_inf;
}

void LossScaler::clear_found_inf() {
  impl().found_inf = at::zeros_like(impl().found_inf);
}

void LossScaler::end_backward(const at::Tensor& found_inf, bool moved,
                              std::shared_ptr<const BackwardReport> report) {
  impl().found_inf = found_inf;
  impl().last_report = std::move(report);
  if (moved) impl().reported_scale = {std::nullopt, impl().last_report};
}

const std::shared_ptr<DeferredOverflow>& LossScaler::deferred() const {
  return impl().deferred;
}

const std::shared_ptr<const BackwardReport>& LossScaler::last_report() const {
  return impl().last_report;
}

const ReportedScale& LossScaler::reported_scale() const {
  return impl().reported_scale;
}

void LossScaler::update() {
  update(impl().found_inf);
  clear_found_inf();
}

void LossScaler::update(const at::Tensor& found_inf) {
  if (!dynamic()) return;
  impl().reported_scale = {};
  about_to_move();
  ops::update_scale(impl().scale.loss_scale, impl().scale.growth_tracker, found_inf,
                    impl().scale.rule);
}

const at::Tensor& LossScaler::loss_scale_tensor() const {
  return impl().scale.loss_scale;
}

double LossScaler::loss_scale() const {
  return impl().scale.loss_scale.item<float>();
}

void LossScaler::set_loss_scale(double value) {
  check_positive(value, "set_loss_scale", "value");
  about_to_move();
  impl().scale.loss_scale.fill_(value);
  impl().reported_scale = {static_cast<float>(value), nullptr};
  if (!dynamic()) impl().kind = LossScale(value);
}

const ops::ScaleRule& LossScaler::rule() const {
  return impl().scale.rule;
}

void LossScaler::set_rule(const ops::ScaleRule& rule) {
  impl().scale.rule = rule;
}

at::Device LossScaler::device() const {
  return impl().scale.loss_scale.device();
}

ScaleState LossScaler::state() const {
  return {loss_scale(), impl().scale.growth_tracker.item<int32_t>()};
}

void LossScaler::load_state(const ScaleState& state) {
  TORCH_CHECK_VALUE(state.is_valid(),
                    "load_state: expected loss_scale to be positive and finite, and "
                    "growth_tracker to have 32 bits, got ",
                    state.loss_scale, " and ", state.growth_tracker);
  set_loss_scale(state.loss_scale);
  impl().scale.growth_tracker.fill_(state.growth_tracker);
  impl().is_compared = false;
}

void LossScaler::set_agreement(Agreement agreement) {
  impl().agreement = std::move(agreement);
  impl().is_compared = false;
}

const Agreement& LossScaler::agreement() const {
  return impl().agreement;
}

bool LossScaler::agrees() const {
  return dynamic() && impl().agreement.all_reduce_max != nullptr;
}

void LossScaler::compare_ranks() {
  if (impl().is_compared || !agrees() || may_be_captured(device())) return;
  check_same_on_all_ranks(impl().agreement, state(), device());
  impl().is_compared = true;
}

}  // namespace torchamp
