// LateReport: reads what the device did in each step from the reports of its backwards.
#pragma once

#include <torchamp/detail/export.h>
#include <torchamp/loss_scaler.h>
#include <torchamp/telemetry.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "core/observer.h"
#include "scaler/scale_snapshot.h"

namespace torchamp {

/// A loss whose backward overflowed.
struct Overflow {
  int64_t loss_id;
  double loss_scale;           ///< now
  bool is_loss_finite = true;  ///< else no loss scale helps
  bool is_elsewhere = false;   ///< on other ranks alone
};

/// A step that the device skipped.
struct SkippedStep {
  std::vector<Overflow> overflows;  ///< by loss_id
  int64_t nonfinite = 0;            ///< how many parameters had a grad that was not finite
  std::vector<int64_t> first;       ///< the first of those, as indices into model_params()
  int64_t in_a_row = 1;             ///< the skipped steps since the last one that was taken
  bool is_at_start = false;         ///< whether no step was taken before
  std::vector<double> scales_then;  ///< by loss_id, after the first of those in a row
};

/// Counts one optimizer's steps once their backwards' reports have arrived. Does not wait for the
/// device.
class TORCHAMP_API LateReport : public core::Observer {
 public:
  void after_backward(core::EndedBackward backward) override;
  void forget_backwards() override { backwards_.clear(); }
  /// Does nothing if the step was captured into a graph, unless ReportsInGraphs are on.
  void after_step(const std::vector<LossScaler*>& scalers) override;

  /// Counts the reports that have arrived, and returns the skipped steps among them.
  std::vector<SkippedStep> flush();
  /// What flush() has counted.
  const Telemetry& known() const { return known_; }

  struct ReportedStep {
    std::vector<core::EndedBackward> backwards;
    std::vector<ReportedScale> scales;  ///< by loss

    /// Of one in a graph: as the replay that is queued last takes it.
    ReportedStep read_back() const;
    bool has_arrived() const;
    bool was_skipped() const;
    SkippedStep skip() const;
    std::vector<double> scale_values() const;
  };
  /// The steps that have been captured into a graph since the last call.
  std::vector<ReportedStep> take_captured() { return std::exchange(captured_, {}); }
  /// After the graph's replay.
  void after_replay(const std::vector<ReportedStep>& captured);

 private:
  void count(const ReportedStep& step);

  std::vector<core::EndedBackward> backwards_;
  std::deque<ReportedStep> arriving_;
  std::vector<ReportedStep> captured_;
  int64_t skipped_in_a_row_ = 0;
  std::vector<double> scales_then_;  ///< after the first of those
  Telemetry known_;
};

}  // namespace torchamp
