// The report of a backward that the host reads without waiting for the device.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <memory>
#include <vector>

namespace torchamp {

/// The end of one backward: its last pass writes it. Only what has_arrived() may be read.
class BackwardReport {
 public:
  /// `bytes`: of a math/report.h Report, in memory that host and device see; of one in a graph, in
  /// the device's.
  explicit BackwardReport(const at::Tensor& bytes);

  /// Of one in a graph: what the last replay has written, which a copy after the queued work
  /// brings. It is what this one tells from then on.
  std::shared_ptr<const BackwardReport> read_back() const;

  /// Never waits, and reads only host memory.
  bool has_arrived() const;
  /// kAllZero … kLossNotFinite of math/report.h: of several, the largest counts.
  float outcome() const;
  /// Whether a grad was not finite, or found_before was set.
  bool found_inf() const;
  /// Whether the loss itself was not finite, if it was a scalar on the device.
  bool found_bad_loss() const;
  /// Afterwards; the scale of the grads if the backward did not update it.
  float loss_scale() const;
  /// How many parameters had a grad that was not finite, in all backwards since they were
  /// cleared.
  int64_t nonfinite() const;
  /// The first of those, as indices into OptimizerState::params().
  std::vector<int64_t> first_nonfinite() const;

  /// For the op.
  const at::Tensor& bytes() const { return bytes_; }
  /// Makes it one that has not arrived.
  void reset();

 private:
  at::Tensor bytes_;
  mutable std::shared_ptr<const BackwardReport> last_read_;  ///< of one in a graph
};

/// While it lives, backwards that this thread captures into a graph have reports, too.
class TORCHAMP_API ReportsInGraphs {
 public:
  ReportsInGraphs();
  ~ReportsInGraphs();
  ReportsInGraphs(const ReportsInGraphs&) = delete;
  ReportsInGraphs& operator=(const ReportsInGraphs&) = delete;

  static bool are_on();
};

/// A report for a backward on `device`: one that is neither held nor still to be written by a
/// pass, or a new one. During a graph's capture, whose replays write it again and again, it is in
/// the device's memory, or null unless ReportsInGraphs are on.
std::shared_ptr<BackwardReport> acquire_report(at::Device device);

/// Reports `loss_scale`, a float32 scalar, as it is now, by copies after the queued work. Null like
/// acquire_report().
std::shared_ptr<const BackwardReport> report_scale(const at::Tensor& loss_scale);

/// Whether work on `device` is being captured into a graph, or may be: unknown on ROCm.
bool may_be_captured(at::Device device);

}  // namespace torchamp
