// CapturedIteration: what the host does around an iteration that a CUDA graph replays. Both
// languages' graphed() hold one for each graph.
#pragma once

#include <torchamp/detail/export.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/optimizer_state.h"
#include "ops/backward_report.h"
#include "telemetry/late_report.h"

namespace torchamp {

/// An iteration of some optimizers, from zero_grad() to step(). A replay runs nothing of the host:
/// this keeps model and masters together, counts steps, and leaves the grads that the iteration
/// leaves.
class TORCHAMP_API CapturedIteration {
 public:
  /// An optimizer that the iteration steps.
  struct Stepped {
    std::shared_ptr<core::OptimizerState> state;
    std::shared_ptr<LateReport> report;
  };

  /// Before the capture, in which model and masters must not need to follow what the program has
  /// written before it.
  explicit CapturedIteration(std::vector<Stepped> optimizers);
  CapturedIteration(const CapturedIteration&) = delete;
  CapturedIteration& operator=(const CapturedIteration&) = delete;

  /// Before a step in the capture. Throws RuntimeError if it is of another optimizer, or would use
  /// a grad of before the capture.
  void note_step(const core::OptimizerState& state);
  /// In the capture, after the iteration. Model and masters follow what the iteration has written.
  /// Throws RuntimeError unless all optimizers have stepped.
  void end();
  /// After a capture that has failed: grads are as before it, and no overflow skips the next step.
  void cancel();

  /// Whether a replay does what the iteration would: the optimizers step the same parameters, in
  /// the same memory, of which the same ones require grads. Where there were no grads before the
  /// capture there must be none now, for the iteration may add to them.
  bool is_current() const;
  /// Model and masters follow what the program has written.
  void before_replay() const;
  /// Behind it in the queue: steps are counted once the device has reported them.
  void after_replay();

 private:
  /// A parameter's memory, and the grads of it and of its master, which are one without a master.
  struct Place {
    std::shared_ptr<core::Param> param;
    const void* model_data;
    const void* master_data;
    bool requires_grad;
    at::Tensor before, master_before;
    at::Tensor after, master_after;
  };
  struct Entry {
    Stepped optimizer;
    std::vector<Place> places;
    std::vector<LateReport::ReportedStep> steps;
    bool has_stepped;
  };

  void bring_together() const;

  std::vector<Entry> entries_;
  bool had_grads_ = false;  ///< before the capture
  std::optional<ReportsInGraphs> reports_{std::in_place};
};

}  // namespace torchamp
