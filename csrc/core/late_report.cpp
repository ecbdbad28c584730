#include "core/late_report.h"

#include <algorithm>
#include <map>

#include "core/backward_report.h"
#include "math/report.h"

namespace torchamp {
namespace {

bool is_known(const ReportedScale& scale) {
  return scale.value || scale.report != nullptr;
}

/// The scale that the host will know.
ReportedScale scale_of(const LossScaler& scaler) {
  const ReportedScale& known = scaler.reported_scale();
  if (is_known(known)) return known;
  return {std::nullopt, report_scale(scaler.loss_scale_tensor())};
}

double value_of(const ReportedScale& scale) {
  return scale.value ? *scale.value : scale.report->loss_scale();
}

bool has_smaller_outcome(const LateReport::Backward& a, const LateReport::Backward& b) {
  return a.weights->outcome() < b.weights->outcome();
}

}  // namespace

bool LateReport::Backward::has_arrived() const {
  return end->has_arrived() && weights->has_arrived() && (!here || here->has_arrived());
}

bool LateReport::Backward::has_skipped() const {
  return skips && end->found_inf();
}

bool LateReport::Backward::has_skipped_elsewhere() const {
  return has_skipped() && here && !here->found_inf();
}

bool LateReport::Step::has_arrived() const {
  return std::all_of(backwards.begin(), backwards.end(),
                     [](const Backward& each) { return each.has_arrived(); }) &&
         std::all_of(scales.begin(), scales.end(), [](const ReportedScale& scale) {
           return scale.value || scale.report->has_arrived();
         });
}

bool LateReport::Step::was_skipped() const {
  return std::any_of(backwards.begin(), backwards.end(),
                     [](const Backward& each) { return each.has_skipped(); });
}

SkippedStep LateReport::Step::skip() const {
  SkippedStep skipped;
  std::map<int64_t, Overflow> overflows;
  for (const Backward& each : backwards) {
    if (each.has_skipped()) {
      const double scale = value_of(scales.at(each.loss_id));
      Overflow& overflow =
          overflows.try_emplace(each.loss_id, Overflow{each.loss_id, scale, true, true})
              .first->second;
      overflow.is_loss_finite &= !each.end->found_bad_loss();
      overflow.is_elsewhere &= each.has_skipped_elsewhere();
    }
    if (each.weights->nonfinite() == 0) continue;
    skipped.nonfinite = each.weights->nonfinite();
    skipped.first = each.weights->first_nonfinite();
  }
  for (const auto& [loss_id, overflow] : overflows) skipped.overflows.push_back(overflow);
  return skipped;
}

std::vector<double> LateReport::Step::scale_values() const {
  std::vector<double> values;
  for (const ReportedScale& scale : scales) values.push_back(value_of(scale));
  return values;
}

std::optional<UnderflowedStep> LateReport::Step::underflow() const {
  const auto largest = std::max_element(backwards.begin(), backwards.end(), has_smaller_outcome);
  if (largest == backwards.end() || largest->weights->outcome() != kUnderflowed) return {};
  return UnderflowedStep{largest->loss_id, value_of(scales.at(largest->loss_id))};
}

/// Of the reports that have arrived and skip nothing, one with the largest outcome is enough.
void LateReport::accumulate(Backward backward) {
  const auto is_settled = [](const Backward& each) {
    return each.end && each.weights && each.has_arrived() && !each.has_skipped();
  };
  const auto settled = backwards_.begin();
  const auto rest = std::stable_partition(settled, backwards_.end(), is_settled);
  if (settled != rest) {
    std::iter_swap(settled, std::max_element(settled, rest, has_smaller_outcome));
    backwards_.erase(settled + 1, rest);
  }
  backwards_.push_back(std::move(backward));
}

void LateReport::note(const std::vector<LossScaler*>& scalers) {
  Step step{std::exchange(backwards_, {}), {}, known_.has_value()};
  const auto in_graph = [](const Backward& each) { return !each.end || !each.weights; };
  if (std::any_of(step.backwards.begin(), step.backwards.end(), in_graph)) return;
  if (may_be_captured(scalers.front()->device())) return;
  for (const LossScaler* scaler : scalers) step.scales.push_back(scale_of(*scaler));
  if (!std::all_of(step.scales.begin(), step.scales.end(), is_known)) return;
  arriving_.push_back(std::move(step));
}

std::vector<SkippedStep> LateReport::flush() {
  std::vector<SkippedStep> skipped;
  for (; !arriving_.empty() && arriving_.front().has_arrived(); arriving_.pop_front()) {
    const Step& step = arriving_.front();
    const auto underflow = step.was_skipped() ? std::nullopt : step.underflow();
    if (step.counts) count(step, underflow.has_value());
    if (underflow) note_underflow(*underflow);
    skipped_in_a_row_ = step.was_skipped() ? skipped_in_a_row_ + 1 : 0;
    has_stepped_ |= !step.was_skipped();
    if (!step.was_skipped()) continue;
    if (skipped_in_a_row_ == 1) scales_then_ = step.scale_values();
    skipped.push_back(step.skip());
    skipped.back().in_a_row = skipped_in_a_row_;
    skipped.back().is_at_start = !has_stepped_;
    skipped.back().scales_then = scales_then_;
  }
  return skipped;
}

void LateReport::count(const Step& step, bool underflowed) {
  known_->steps += 1;
  known_->stepped = !step.was_skipped();
  known_->skipped_steps += step.was_skipped();
  known_->underflowed = underflowed;
  known_->underflowed_steps += underflowed;
  known_->loss_scales = step.scale_values();
}

void LateReport::note_underflow(const UnderflowedStep& step) {
  if (!std::exchange(has_underflowed_, true)) underflow_ = step;
}

std::optional<UnderflowedStep> LateReport::take_underflow() {
  return std::exchange(underflow_, std::nullopt);
}

const Telemetry& LateReport::known() {
  if (!known_) known_.emplace();
  return *known_;
}

}  // namespace torchamp
