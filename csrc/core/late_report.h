// What the device did in each step, from the reports of its backwards.
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

/// A step that was taken by grads that were all zero, although the loss was not.
struct UnderflowedStep {
  int64_t loss_id;
  double loss_scale;  ///< now
};

/// Counts one optimizer's steps once their backwards' reports have arrived. Does not wait for the
/// device.
class TORCHAMP_API LateReport {
 public:
  using Report = std::shared_ptr<const BackwardReport>;

  /// One backward, for the next step.
  struct Backward {
    int64_t loss_id = 0;
    Report end;             ///< its scaler's last_report()
    Report weights;         ///< that of the optimizer's weights
    bool skips = true;      ///< whether an overflow skips the step; not under a fixed scale
    Report here = nullptr;  ///< if `end` is that of all ranks, that of this one; else null

    bool has_arrived() const;
    bool has_skipped() const;
    bool has_skipped_elsewhere() const;
  };

  void accumulate(Backward backward);
  /// Discards the backwards since the last step.
  void clear() { backwards_.clear(); }
  /// Ends a step of those backwards. Does nothing if it was captured into a graph.
  void note(const std::vector<LossScaler*>& scalers);

  /// Counts the reports that have arrived, and returns the skipped steps among them.
  std::vector<SkippedStep> flush();
  /// The first step among those counted that underflowed, once.
  std::optional<UnderflowedStep> take_underflow();
  /// The counts since the first call.
  const Telemetry& known();

 private:
  struct Step {
    std::vector<Backward> backwards;
    std::vector<ReportedScale> scales;  ///< by loss
    bool counts;

    bool has_arrived() const;
    bool was_skipped() const;
    SkippedStep skip() const;
    std::vector<double> scale_values() const;
    std::optional<UnderflowedStep> underflow() const;
  };

  void count(const Step& step, bool underflowed);
  void note_underflow(const UnderflowedStep& step);

  std::vector<Backward> backwards_;
  std::deque<Step> arriving_;
  int64_t skipped_in_a_row_ = 0;
  std::vector<double> scales_then_;  ///< after the first of those
  bool has_stepped_ = false;
  bool has_underflowed_ = false;
  std::optional<UnderflowedStep> underflow_;  ///< that take_underflow() is to return
  std::optional<Telemetry> known_;
};

}  // namespace torchamp
