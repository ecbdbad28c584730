#include "telemetry/late_report.h"

#include <algorithm>
#include <map>

#include "ops/backward_report.h"

namespace torchamp {
namespace {

using core::EndedBackward;

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

bool has_arrived(const EndedBackward& backward) {
  return backward.end->has_arrived() && backward.weights->has_arrived() &&
         (!backward.here || backward.here->has_arrived());
}

bool has_skipped(const EndedBackward& backward) {
  return backward.skips && backward.end->found_inf();
}

bool has_skipped_elsewhere(const EndedBackward& backward) {
  return has_skipped(backward) && backward.here && !backward.here->found_inf();
}

bool is_in_graph(const EndedBackward& backward) {
  return !backward.end || !backward.weights;
}

}  // namespace

LateReport::ReportedStep LateReport::ReportedStep::read_back() const {
  std::map<const BackwardReport*, std::shared_ptr<const BackwardReport>> reads;
  const auto read = [&](std::shared_ptr<const BackwardReport>& report) {
    if (report == nullptr || report->bytes().is_cpu()) return;
    auto& known = reads[report.get()];
    if (known == nullptr) known = report->read_back();
    report = known;
  };
  ReportedStep result = *this;
  for (EndedBackward& backward : result.backwards) {
    for (auto* report : {&backward.end, &backward.weights, &backward.here}) read(*report);
  }
  for (ReportedScale& scale : result.scales) read(scale.report);
  return result;
}

bool LateReport::ReportedStep::has_arrived() const {
  return std::all_of(backwards.begin(), backwards.end(), torchamp::has_arrived) &&
         std::all_of(scales.begin(), scales.end(), [](const ReportedScale& scale) {
           return scale.value || scale.report->has_arrived();
         });
}

bool LateReport::ReportedStep::was_skipped() const {
  return std::any_of(backwards.begin(), backwards.end(), has_skipped);
}

SkippedStep LateReport::ReportedStep::skip() const {
  SkippedStep skipped;
  std::map<int64_t, Overflow> overflows;
  for (const EndedBackward& each : backwards) {
    if (has_skipped(each)) {
      const double scale = value_of(scales.at(each.loss_id));
      Overflow& overflow =
          overflows.try_emplace(each.loss_id, Overflow{each.loss_id, scale, true, true})
              .first->second;
      overflow.is_loss_finite &= !each.end->found_bad_loss();
      overflow.is_elsewhere &= has_skipped_elsewhere(each);
    }
    if (each.weights->nonfinite() == 0) continue;
    skipped.nonfinite = each.weights->nonfinite();
    skipped.first = each.weights->first_nonfinite();
  }
  for (const auto& [loss_id, overflow] : overflows) skipped.overflows.push_back(overflow);
  return skipped;
}

std::vector<double> LateReport::ReportedStep::scale_values() const {
  std::vector<double> values;
  for (const ReportedScale& scale : scales) values.push_back(value_of(scale));
  return values;
}

/// Backwards that are known to skip nothing are dropped, so that they do not pile up.
void LateReport::after_backward(EndedBackward backward) {
  const auto skips_nothing = [](const EndedBackward& each) {
    return !is_in_graph(each) && has_arrived(each) && !has_skipped(each);
  };
  backwards_.erase(std::remove_if(backwards_.begin(), backwards_.end(), skips_nothing),
                   backwards_.end());
  backwards_.push_back(std::move(backward));
}

void LateReport::after_step(const std::vector<LossScaler*>& scalers) {
  ReportedStep step{std::exchange(backwards_, {}), {}};
  if (std::any_of(step.backwards.begin(), step.backwards.end(), is_in_graph)) return;
  const bool is_captured = may_be_captured(scalers.front()->device());
  if (is_captured && !ReportsInGraphs::are_on()) return;
  for (const LossScaler* scaler : scalers) step.scales.push_back(scale_of(*scaler));
  if (!std::all_of(step.scales.begin(), step.scales.end(), is_known)) return;
  is_captured ? captured_.push_back(std::move(step)) : arriving_.push_back(std::move(step));
}

void LateReport::after_replay(const std::vector<ReportedStep>& captured) {
  for (const ReportedStep& step : captured) arriving_.push_back(step.read_back());
}

std::vector<SkippedStep> LateReport::flush() {
  std::vector<SkippedStep> skipped;
  for (; !arriving_.empty() && arriving_.front().has_arrived(); arriving_.pop_front()) {
    const ReportedStep& step = arriving_.front();
    count(step);
    skipped_in_a_row_ = step.was_skipped() ? skipped_in_a_row_ + 1 : 0;
    if (!step.was_skipped()) continue;
    if (skipped_in_a_row_ == 1) scales_then_ = step.scale_values();
    skipped.push_back(step.skip());
    skipped.back().in_a_row = skipped_in_a_row_;
    skipped.back().is_at_start = known_.steps == known_.skipped_steps;
    skipped.back().scales_then = scales_then_;
  }
  return skipped;
}

void LateReport::count(const ReportedStep& step) {
  known_.steps += 1;
  known_.stepped = !step.was_skipped();
  known_.skipped_steps += step.was_skipped();
  known_.loss_scales = step.scale_values();
}

}  // namespace torchamp
