// The grads of one optimizer's next step. docs/grads.md is the specification.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/one_pass.h"
#include "core/overflows.h"
#include "core/param.h"

namespace torchamp {

class BackwardReport;
class LossScaler;
class UnscalePass;

namespace core {

/// The grads of all parameters that one optimizer steps.
class TORCHAMP_API Grads {
 public:
  using Report = std::shared_ptr<const BackwardReport>;
  using ScalingPtr = std::shared_ptr<const Scaling>;

  /// `params` and `overflows`: the optimizer's, which must outlive it.
  Grads(const ParamList& params, Overflows& overflows)
      : params_(params), overflows_(overflows), one_pass_(params) {}

  /// @name What they are
  /// @{

  /// Whether some cannot be used yet: in an open backward, or scaled.
  bool are_scaled() const;
  /// Whether some are of an open backward.
  bool are_open() const;
  /// Whether backwards before the open one have contributed.
  bool have_contributed() const;
  /// Whether there are parameters, and the next step uses no grad of them.
  bool are_missing() const;
  /// Whether some are others than torchamp has left, or were written since.
  bool are_new() const;
  /// Whether some can be differentiated.
  bool have_graphs() const;
  /// Whether some are of earlier backwards, unscaled, so that a later one may have added to them.
  bool are_finished() const;
  /// The grads that a step unscales.
  OnePass& one_pass() { return one_pass_; }
  const OnePass& one_pass() const { return one_pass_; }

  /// @}
  /// @name The program
  /// @{

  /// Drops what a step has skipped, and reads what the program has done to the grads. Returns
  /// whether it has zeroed the last that counted.
  bool update();
  /// Masters show theirs from the next update() on. Makes those that are kChecked kUnscaled, and
  /// later ones, too.
  void show();
  /// Makes those that are kChecked kUnscaled.
  void unscale_checked() { one_pass_.unscale(shows_); }
  /// Some were zeroed.
  void note_drop() { had_drops_ = true; }
  /// None counts any more.
  void forget();

  /// @}
  /// @name A backward
  /// @{

  /// Sets those of earlier backwards aside.
  void open();
  /// Opens them as those of the open backward.
  void take();
  /// Puts back what opening has found.
  void cancel();
  /// Ends the open backward, of `scaling`, whose grads stay scaled.
  void delay(const ScalingPtr& scaling);
  /// The scalings of grads that are kScaled which `scaler` does not scale by now. The optimizer's
  /// own last one is among them even if no grad has it, so that all ranks find the same number.
  std::vector<ScalingPtr> other_scalings(const LossScaler& scaler) const;
  /// finish() for those that `scaling` has scaled.
  at::Tensor finish(const Scaling& scaling);
  /// Unscales those that are kOpen, adding to those of earlier backwards, or only checks them, or,
  /// where nothing has scaled them and nothing is to be added, leaves them as they are.
  /// `loss_scale`: float32 scalar on the device; `is_identity`: it is 1. `end`: found_before, moved
  /// and loss. Returns a new float32 scalar on the device: 1 if any is not finite or found_before
  /// is not 0; undefined if nothing was checked.
  at::Tensor finish(const at::Tensor& loss_scale, bool is_identity, BackwardEnd end);
  /// What the last finish() reports to; null: it has checked nothing, or was captured.
  const Report& last_report() const { return last_report_; }

  /// @}
  /// @name Strays: grads of backwards that were not given the optimizer
  /// @{

  /// Before such a backward.
  void watch_strays();
  /// After it.
  void note_strays();
  /// Whether those of model and masters are as the last of these two has left them, without an
  /// update() since.
  bool are_as_seen() const;
  /// Parameters come or go.
  void forget_seen() { seen_.clear(); }
  /// Throws RuntimeError, which names `function`, if there are some. set_aside: also if the next
  /// backward of the optimizer sets them aside.
  void check_no_strays(const char* function, bool set_aside) const;

  /// @}

 private:
  /// A tensor's grad. Flat, since many optimizers may be looked at around each backward.
  struct Seen {
    const c10::TensorImpl* tensor;
    Mark grad;
  };

  void see();
  at::Tensor run(const UnscalePass& pass, const at::Tensor& loss_scale, BackwardEnd end,
                 bool checks_only);

  const ParamList& params_;
  Overflows& overflows_;
  OnePass one_pass_;
  bool shows_ = false;      ///< masters show theirs between backward and step
  bool had_drops_ = false;  ///< the program has zeroed some since update()
  ScalingPtr scaling_;      ///< of the last backward that left grads kScaled
  Report last_report_;
  std::vector<Seen> seen_;
};

}  // namespace core
}  // namespace torchamp
