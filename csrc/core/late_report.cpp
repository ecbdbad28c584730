#include "core/late_report.h"

#include <algorithm>
#include <map>

#include "core/backward_report.h"

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

}  // namespace

bool LateReport::Step::has_arrived() const {
  return std::all_of(backwards.begin(), backwards.end(),
                     [](const Backward& each) {
                       return each.end->has_arrived() && each.weights->has_arrived();
                     }) &&
         std::all_of(scales.begin(), scales.end(), [](const ReportedScale& scale) {
           return scale.value || scale.report->has_arrived();
         });
}

bool LateReport::Step::was_skipped() const {
  return std::any_of(backwards.begin(), backwards.end(),
                     [](const Backward& each) { return each.end->found_inf(); });
}

SkippedStep LateReport::Step::skip() const {
  SkippedStep skipped;
  std::map<int64_t, bool> is_finite;
  for (const Backward& each : backwards) {
    if (each.end->found_inf()) {
      is_finite.try_emplace(each.loss_id, true).first->second &= !each.end->found_bad_loss();
    }
    if (each.weights->nonfinite() == 0) continue;
    skipped.nonfinite = each.weights->nonfinite();
    skipped.first = each.weights->first_nonfinite();
  }
  for (const auto& [loss_id, finite] : is_finite) {
    skipped.overflows.push_back({loss_id, value_of(scales.at(loss_id)), finite});
  }
  return skipped;
}

/// Clean reports that have arrived do not decide about the step.
void LateReport::accumulate(Backward backward) {
  const auto is_settled = [](const Backward& each) {
    return each.end && each.weights && each.end->has_arrived() && each.weights->has_arrived() &&
           !each.end->found_inf();
  };
  backwards_.erase(std::remove_if(backwards_.begin(), backwards_.end(), is_settled),
                   backwards_.end());
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
    if (step.counts) count(step);
    skipped_in_a_row_ = step.was_skipped() ? skipped_in_a_row_ + 1 : 0;
    if (!step.was_skipped()) continue;
    skipped.push_back(step.skip());
    skipped.back().in_a_row = skipped_in_a_row_;
  }
  return skipped;
}

void LateReport::count(const Step& step) {
  known_->steps += 1;
  known_->stepped = !step.was_skipped();
  known_->skipped_steps += step.was_skipped();
  known_->loss_scales.clear();
  for (const ReportedScale& scale : step.scales) known_->loss_scales.push_back(value_of(scale));
}

const Telemetry& LateReport::known() {
  if (!known_) known_.emplace();
  return *known_;
}

}  // namespace torchamp
