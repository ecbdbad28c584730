// What the host learns of a backward without asking the device for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace torchamp {

/// The end of one backward: its last pass writes it. Only what has_arrived() may be read.
class BackwardReport {
 public:
  /// `bytes`: of a math/report.h Report, in memory that host and device see.
  explicit BackwardReport(const at::Tensor& bytes);

  /// Never waits, and reads the memory of the host alone.
  bool has_arrived() const;
  /// Whether a grad was not finite, or what the backward was told of before.
  bool found_inf() const;
  /// Afterwards; the scale that the grads bore where the backward did not move it.
  float loss_scale() const;
  /// How many parameters had a grad that was not finite, in all backwards since they were
  /// forgotten.
  int64_t nonfinite() const;
  /// The first of those, as indices into MasterWeights::model_params().
  std::vector<int64_t> first_nonfinite() const;

  /// For the op.
  const at::Tensor& bytes() const { return bytes_; }
  /// Makes it one that has not arrived.
  void reset();

 private:
  at::Tensor bytes_;
};

/// A report for a backward on `device`: one that nobody holds any more and no pass is to write
/// still, or a new one. Null while what is queued goes into a graph, whose replays would write it
/// over and over.
std::shared_ptr<BackwardReport> take_report(at::Device device);

/// Reports `loss_scale`, a float32 scalar, as it is now, by copies behind what is queued. Null as
/// from take_report().
std::shared_ptr<const BackwardReport> report_scale(const at::Tensor& loss_scale);

/// Whether what is queued on `device` now goes into a graph, or may: ROCm does not tell.
bool may_be_captured(at::Device device);

}  // namespace torchamp
