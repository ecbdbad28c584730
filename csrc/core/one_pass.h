// The one-pass step: grads that a backward only checks, and that the step unscales.
#pragma once

#include "core/param.h"
#include "optim/fused_stepper.h"

namespace torchamp {

struct BackwardEnd;

namespace core {

/// The grads of one optimizer that are kChecked, under materialize_master_grads=False.
class TORCHAMP_API OnePass {
 public:
  /// `params`: the optimizer's, which must outlive it.
  explicit OnePass(const ParamList& params) : params_(params) {}

  /// Whether backwards may leave grads kChecked. Off by default.
  bool is_on() const { return is_on_; }
  /// Switches it, while no grads are kChecked.
  void switch_to(bool is_on) { is_on_ = is_on; }
  /// Whether all that the open backward has made, of parameters with masters, may become kChecked.
  /// Not while grads accumulate over several backwards: each may have its own scale. Nor for views
  /// of a bucket: the reducer replaces them when it rebuilds its buckets, in a later forward.
  bool can_check() const;

  /// Whether grads are kChecked.
  bool has_grads() const;
  /// Their factor: the float32 inverse of their scale, clipped. Of none it means nothing.
  const at::Tensor& factor() const { return factor_; }
  /// Replaces it.
  void set_factor(const at::Tensor& factor) { factor_ = factor; }
  /// Their norm, still scaled, a float32 scalar on the device; undefined if there are none. After
  /// the first call, backwards compute it in their pass.
  at::Tensor norm();
  /// Makes them kUnscaled. `shows`: masters show them too. Throws RuntimeError if the program has
  /// written them.
  void unscale(bool shows);
  /// Throws RuntimeError if the program has written the grad of `param`, which is kChecked.
  static void check_not_written(const Param& param);

  /// Adds to the end of a pass that checks them what it writes. can_norm: it can compute the norm.
  void lend(BackwardEnd& end, bool can_norm) const;
  /// Takes that back after the pass.
  void take_back(const BackwardEnd& end);
  /// There are fewer of them, or none.
  void note_drops() { norm_.reset(); }

 private:
  const ParamList& params_;
  bool is_on_ = false;
  bool wants_norm_ = false;
  at::Tensor factor_, norm_;
};

class OptimizerState;

/// Within a Step that writes the model: steps by `stepper`, whose parameters are among the masters
/// of `state`, and writes the model's, in one pass. `skip`: float32 scalar on the device, unless 0
/// nothing changes; undefined: 0.
TORCHAMP_API void step_by(OptimizerState& state, FusedStepper& stepper, const at::Tensor& skip);

}  // namespace core
}  // namespace torchamp
