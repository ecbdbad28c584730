#include "telemetry/skip_messages.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

namespace torchamp {

bool is_loss_finite(const SkippedStep& step) {
  return std::all_of(step.overflows.begin(), step.overflows.end(),
                     [](const Overflow& overflow) { return overflow.is_loss_finite; });
}

namespace {

/// From this many skipped steps in a row on, they have a reason that no lower scale removes.
constexpr int64_t kManyInARow = 10;

/// All of the first, then after every doubling.
bool is_reported(int64_t in_a_row) {
  const int64_t tens = in_a_row / kManyInARow;
  return in_a_row < kManyInARow || (in_a_row % kManyInARow == 0 && (tens & (tens - 1)) == 0);
}

bool has_finite_loss(const SkippedStep& step) {
  return std::any_of(step.overflows.begin(), step.overflows.end(),
                     [](const Overflow& overflow) { return overflow.is_loss_finite; });
}

std::string where(const SkippedStep& step, const std::vector<std::string>& names,
                  const std::string& in_float8) {
  if (!in_float8.empty()) return c10::str(": float8: ", in_float8, " was not finite");
  if (names.empty() || !has_finite_loss(step)) return "";
  const auto more = step.nonfinite - static_cast<int64_t>(names.size());
  return c10::str(", at ", c10::Join(", ", names),
                  more > 0 ? c10::str(" and ", more, " more") : "");
}

std::string event_of(const Overflow& overflow) {
  if (!overflow.is_loss_finite) return c10::str("loss ", overflow.loss_id, " is not finite");
  return c10::str("gradient overflow in loss ", overflow.loss_id,
                  overflow.is_elsewhere ? " on another rank" : "");
}

constexpr const char* kNormal =
    "; this is normal before the first step, since the scale starts high";

/// A dynamic scale starts high.
bool is_normal(const SkippedStep& step) {
  return step.is_at_start && step.in_a_row < kManyInARow && is_loss_finite(step);
}

std::string message_of(const SkippedStep& step, const std::string& where) {
  std::vector<std::string> events, scales;
  for (const Overflow& overflow : step.overflows) {
    events.push_back(event_of(overflow));
    scales.push_back(c10::str(overflow.loss_scale));
  }
  return c10::str(c10::Join(" and ", events), where, ": step skipped, loss scale",
                  scales.size() > 1 ? "s" : "", " now ", c10::Join(" and ", scales),
                  is_normal(step) ? kNormal : "");
}

std::string reason(const SkippedStep& step) {
  return is_loss_finite(step)
             ? "lowering the loss scale does not make the gradients finite; look for what is "
               "infinite or NaN in the model or its backward"
             : "the loss itself is not finite, whatever the loss scale; check the data and the "
               "learning rate, or resume from an earlier checkpoint";
}

/// By how much those in a row have lowered the scales.
std::string fall(const SkippedStep& step) {
  std::vector<std::string> falls;
  for (const Overflow& overflow : step.overflows) {
    const double then = step.scales_then.at(overflow.loss_id);
    falls.push_back(c10::str("from ", then, " to ", overflow.loss_scale));
  }
  return falls.empty() ? "" : c10::str(", loss scale ", c10::Join(" and ", falls));
}

std::string message_of_row(const SkippedStep& step) {
  return c10::str(step.in_a_row, " steps skipped in a row", fall(step), ": ", reason(step));
}

}  // namespace

std::vector<LogMessage> messages_of(const SkippedStep& step, const std::vector<std::string>& names,
                                    const std::function<std::string()>& in_float8) {
  std::vector<LogMessage> messages;
  if (!is_reported(step.in_a_row)) return messages;
  if (!step.overflows.empty()) {
    messages.push_back(
        {LogLevel::kInfo, message_of(step, where(step, names, in_float8 ? in_float8() : ""))});
  }
  if (step.in_a_row >= kManyInARow) {
    messages.push_back({LogLevel::kWarning, message_of_row(step)});
  }
  return messages;
}

void check_in_a_row(const SkippedStep& step, int64_t max_in_a_row) {
  TORCH_CHECK(step.in_a_row < max_in_a_row,
              "expected fewer than max_consecutive_skips = ", max_in_a_row,
              " skipped steps in a row, got ", step.in_a_row, fall(step), ": ", reason(step));
}

}  // namespace torchamp
