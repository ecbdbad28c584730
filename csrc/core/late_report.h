// What became of steps that the device decides about, from its backwards' reports.
#pragma once

#include <torchamp/detail/export.h>
#include <torchamp/loss_scaler.h>
#include <torchamp/telemetry.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace torchamp {

/// A loss whose backward overflowed, and its scale now.
struct Overflow {
  int64_t loss_id;
  double loss_scale;
};

/// A step that the device left out.
struct SkippedStep {
  std::vector<Overflow> overflows;  ///< by loss_id; but for those that were told of
  int64_t nonfinite = 0;            ///< how many parameters had a grad that was not finite
  std::vector<int64_t> first;       ///< the first of those, as indices into model_params()
};

/// Counts one optimizer's steps once their backwards' reports have arrived. Waits for nothing.
class TORCHAMP_API LateReport {
 public:
  using Report = std::shared_ptr<const BackwardReport>;

  /// One backward, for the next step.
  struct Backward {
    int64_t loss_id = 0;
    Report end;            ///< its scaler's last_report()
    Report weights;        ///< that of the optimizer's weights
    bool is_told = false;  ///< of its overflow, if any
  };

  void gather(Backward backward);
  /// Forgets the backwards since the last step.
  void clear() { backwards_.clear(); }
  /// Ends a step of those backwards. Nothing where that went into a graph.
  void note(const std::vector<LossScaler*>& scalers);

  /// Counts what has arrived, and returns the steps of it that were skipped.
  std::vector<SkippedStep> flush();
  /// What was counted since the first call.
  const Telemetry& known();

 private:
  struct Step {
    std::vector<Backward> backwards;
    std::vector<ReportedScale> scales;  ///< by loss
    bool counts;

    bool has_arrived() const;
    bool was_skipped() const;
    SkippedStep skip() const;
  };

  void count(const Step& step);

  std::vector<Backward> backwards_;
  std::deque<Step> arriving_;
  std::optional<Telemetry> known_;
};

}  // namespace torchamp
