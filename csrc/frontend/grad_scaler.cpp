#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros_like.h>
#include <torch/serialize/archive.h>
#include <torchamp/grad_scaler.h>

#include <cmath>
#include <set>
#include <utility>

#include "frontend/device_grads.h"
#include "frontend/optim/fused_steppers.h"
#include "scaler/ranks.h"

namespace torchamp {
namespace {

using at::Tensor;
using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

/// The limit of growth: the largest power of two in float32.
const double kMaxScale = std::ldexp(1.0, 127);

void check_growth_factor(double factor) {
  TORCH_CHECK_VALUE(factor > 1, "GradScaler: expected growth_factor to be above 1, got ", factor);
}

void check_backoff_factor(double factor) {
  TORCH_CHECK_VALUE(0 < factor && factor < 1,
                    "GradScaler: expected backoff_factor to be between 0 and 1, got ", factor);
}

ops::ScaleRule checked_rule(const GradScalerOptions& options) {
  check_growth_factor(options.growth_factor());
  check_backoff_factor(options.backoff_factor());
  ops::ScaleRule rule;
  rule.growth_factor = options.growth_factor();
  rule.backoff_factor = options.backoff_factor();
  rule.growth_interval = options.growth_interval();
  rule.min_scale = 0.0;
  rule.max_scale = kMaxScale;
  return rule;
}

bool is_set(const Tensor& found_inf) {
  return found_inf.item<float>() != 0.0f;
}

c10::IValue read(InputArchive& archive, const std::string& key) {
  c10::IValue value;
  TORCH_CHECK(archive.try_read(key, value), "GradScaler::load: expected the archive to contain \"",
              key,
              "\", but it is missing: the archive is damaged, or was saved by a GradScaler that is "
              "not enabled");
  return value;
}

/// They would not follow its 16-bit step.
void check_has_no_masters(const char* method, torch::optim::Optimizer& optimizer) {
  TORCH_CHECK(!core::have_masters(params_of(optimizer)), "GradScaler::", method,
              ": expected an optimizer of parameters without float32 masters, got one that "
              "initialize was given; use scale_loss, and step() of the one that it returned");
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : scaler_({LossScale("dynamic"), options.init_scale(), checked_rule(options)}),
      enabled_(options.enabled()) {
  if (enabled_ && options.device()) place_on(*options.device());
}

void GradScaler::place_on(at::Device device) {
  if (std::exchange(is_placed_, true)) return;
  const ScaleState state = scaler_.state();
  Agreement ranks = scaler_.agreement();
  scaler_ = LossScaler({LossScale("dynamic"), state.loss_scale, scaler_.rule()}, device);
  scaler_.load_state(state);
  scaler_.set_agreement(std::move(ranks));
}

GradScaler& GradScaler::process_group(Agreement ranks) {
  check_ranks("GradScaler", ranks);
  scaler_.set_agreement(std::move(ranks));
  return *this;
}

Tensor GradScaler::scale(const Tensor& outputs) {
  if (!enabled_) return outputs;
  TORCH_CHECK_TYPE(outputs.defined() && outputs.is_floating_point(),
                   "GradScaler::scale: expected outputs to be a floating-point tensor, got ",
                   outputs.defined() ? outputs.toString() : "none");
  check_not_moved("scale");
  place_on(outputs.device());
  const bool is_low = at::isReducedFloatingType(outputs.scalar_type());
  const Tensor wide = is_low ? outputs.to(at::kFloat) : outputs;
  return wide.mul(scaler_.loss_scale_tensor().to(wide.device(), /*non_blocking=*/true));
}

std::vector<Tensor> GradScaler::scale(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> scaled;
  for (const Tensor& output : outputs) scaled.push_back(scale(output));
  return scaled;
}

void GradScaler::check_not_moved(const char* method) const {
  TORCH_CHECK(!scaler_.was_moved_from(), "GradScaler::", method,
              ": expected a GradScaler that holds its scale, got one that was moved from");
}

void GradScaler::check_scaled(const char* method) const {
  check_not_moved(method);
  TORCH_CHECK(is_placed_, "GradScaler::", method, ": expected scale() to be called first");
}

void GradScaler::look_at_grads(torch::optim::Optimizer& optimizer, Checks& checks,
                               const std::optional<Tensor>& inv_scale) const {
  checks.found_inf = Tensor();
  checks.found_inf_per_param.clear();
  for (const auto& [device, found_inf, per_param] : check_grads(params_of(optimizer), inv_scale)) {
    const Tensor here = found_inf.to(scaler_.device(), /*non_blocking=*/true);
    checks.found_inf = checks.found_inf.defined() ? at::maximum(checks.found_inf, here) : here;
    checks.found_inf_per_param.push_back(per_param);
  }
  if (!scaler_.agrees()) return;
  if (!checks.found_inf.defined()) checks.found_inf = at::zeros_like(scaler_.found_inf());
  scaler_.agreement().all_reduce_max(checks.found_inf);
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!enabled_) return;
  check_scaled("unscale_");
  check_has_no_masters("unscale_", optimizer);
  Checks& checks = checks_[&optimizer];
  TORCH_CHECK(checks.stage == Stage::kReady,
              "GradScaler::unscale_: expected one call per optimizer before each update(), and "
              "before its step(), got a ",
              checks.stage == Stage::kUnscaled ? "second call" : "call after step()");
  scaler_.compare_ranks();
  look_at_grads(optimizer, checks, scaler_.inv_scale());
  checks.stage = Stage::kUnscaled;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!enabled_) {
    optimizer.step();
    return true;
  }
  check_scaled("step");
  check_has_no_masters("step", optimizer);
  Checks& checks = checks_[&optimizer];
  TORCH_CHECK(checks.stage != Stage::kStepped,
              "GradScaler::step: expected one step per optimizer before each update(), got a "
              "second step");
  auto* const fused = dynamic_cast<optim::FusedOptimizer*>(&optimizer);
  const bool stepped =
      fused != nullptr ? step_fused(*fused, checks) : step_or_skip(optimizer, checks);
  checks.stage = Stage::kStepped;
  return stepped;
}

bool GradScaler::step_or_skip(torch::optim::Optimizer& optimizer, Checks& checks) {
  if (checks.stage == Stage::kReady) unscale_(optimizer);
  TORCH_CHECK(checks.found_inf.defined(),
              "GradScaler::step: expected the optimizer to have a parameter with a grad, got none");
  if (is_set(checks.found_inf)) return false;
  optimizer.step();
  return true;
}

bool GradScaler::step_fused(optim::FusedOptimizer& optimizer, Checks& checks) {
  FusedStepper::StepInputs step;
  if (checks.stage == Stage::kReady) {
    scaler_.compare_ranks();
    look_at_grads(optimizer, checks, std::nullopt);
    step.grad_factor = scaler_.inv_scale();
  }
  if (checks.found_inf.defined()) step.skip = checks.found_inf;
  optimizer.steppers()->step(optimizer, step);
  const bool is_known = checks.found_inf.defined() && checks.found_inf.is_cpu();
  return !(is_known && is_set(checks.found_inf));
}

void GradScaler::update() {
  if (!enabled_) return;
  check_scaled("update");
  Tensor found_inf;
  for (const auto& [optimizer, checks] : checks_) {
    if (!checks.found_inf.defined()) continue;
    found_inf = found_inf.defined() ? at::maximum(found_inf, checks.found_inf) : checks.found_inf;
  }
  TORCH_CHECK(
      found_inf.defined(),
      "GradScaler::update: expected a step() or unscale_() of an optimizer whose parameters "
      "have grads since the last update(), got none");
  scaler_.found_inf().copy_(found_inf, /*non_blocking=*/true);
  scaler_.update();
  end_iteration();
}

void GradScaler::update(double new_scale) {
  if (!enabled_) return;
  scaler_.set_loss_scale(new_scale);
  end_iteration();
}

void GradScaler::update(const Tensor& new_scale) {
  if (!enabled_) return;
  TORCH_CHECK_VALUE(new_scale.defined() && new_scale.numel() == 1,
                    "GradScaler::update: expected new_scale to have one element, got ",
                    new_scale.defined() ? std::to_string(new_scale.numel()) : "none");
  scaler_.loss_scale_tensor().copy_(new_scale.detach().squeeze(), /*non_blocking=*/true);
  end_iteration();
}

void GradScaler::end_iteration() {
  last_checks_ = std::exchange(checks_, {});
}

std::vector<Tensor> GradScaler::overflowed_params(torch::optim::Optimizer& optimizer) const {
  const auto now = checks_.find(&optimizer), last = last_checks_.find(&optimizer);
  if (now == checks_.end() && last == last_checks_.end()) return {};
  const Checks& checks = now != checks_.end() ? now->second : last->second;
  std::set<int64_t> indices;
  for (const Tensor& flags : checks.found_inf_per_param) {
    const Tensor found = flags.nonzero().flatten().cpu();
    indices.insert(found.data_ptr<int64_t>(), found.data_ptr<int64_t>() + found.numel());
  }
  const std::vector<Tensor> params = params_of(optimizer);
  std::vector<Tensor> overflowed;
  for (const int64_t i : indices) overflowed.push_back(params.at(i));
  return overflowed;
}

void GradScaler::set_growth_factor(double growth_factor) {
  check_growth_factor(growth_factor);
  ops::ScaleRule rule = scaler_.rule();
  rule.growth_factor = growth_factor;
  scaler_.set_rule(rule);
}

void GradScaler::set_backoff_factor(double backoff_factor) {
  check_backoff_factor(backoff_factor);
  ops::ScaleRule rule = scaler_.rule();
  rule.backoff_factor = backoff_factor;
  scaler_.set_rule(rule);
}

void GradScaler::set_growth_interval(int64_t growth_interval) {
  ops::ScaleRule rule = scaler_.rule();
  rule.growth_interval = growth_interval;
  scaler_.set_rule(rule);
}

void GradScaler::save(OutputArchive& archive) const {
  if (!enabled_) return;
  const ScaleState state = scaler_.state();
  archive.write("scale", c10::IValue(state.loss_scale));
  archive.write("growth_factor", c10::IValue(get_growth_factor()));
  archive.write("backoff_factor", c10::IValue(get_backoff_factor()));
  archive.write("growth_interval", c10::IValue(get_growth_interval()));
  archive.write("_growth_tracker", c10::IValue(state.growth_tracker));
}

void GradScaler::load(InputArchive& archive) {
  if (!enabled_) return;
  const double scale = read(archive, "scale").toDouble();
  GradScalerOptions saved;
  saved.growth_factor(read(archive, "growth_factor").toDouble());
  saved.backoff_factor(read(archive, "backoff_factor").toDouble());
  saved.growth_interval(read(archive, "growth_interval").toInt());
  const int64_t growth_tracker = read(archive, "_growth_tracker").toInt();
  const ops::ScaleRule rule = checked_rule(saved);
  scaler_.load_state({scale, growth_tracker});
  scaler_.set_rule(rule);
}

}  // namespace torchamp
