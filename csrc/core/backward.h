// Stages 4 to 6, around one backward: both languages' scale_loss holds one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/optimizer_state.h"

namespace torchamp::core {

/// Which loss a Backward is of, and what is delayed until a later one.
struct BackwardOptions {
  int64_t loss_id = 0;
  bool delay_unscale = false;
  bool delay_overflow_check = false;
};

/// One backward of one loss, for the optimizers whose parameters get grads in it: scale() and
/// prepare(), the backward, finish(). Without a backward, it unscales grads that are kScaled. From
/// prepare() to finish() it is open; its destructor cancels it.
class TORCHAMP_API Backward {
 public:
  using States = std::vector<std::shared_ptr<OptimizerState>>;

  /// `scaler` must outlive it.
  Backward(const States& states, LossScaler& scaler, BackwardOptions options);
  ~Backward();
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

  /// Whether there is anything to do: otherwise autograd's grads are used as they are.
  static bool is_needed(const States& states, const LossScaler& scaler);

  /// `loss` times the current scale.
  at::Tensor scale(const at::Tensor& loss);
  /// Sets the grads of earlier backwards aside, if it is needed. Those that are kScaled by another
  /// scale than this backward's are unscaled first. Throws RuntimeError, and leaves grads as they
  /// were, if another Backward of an optimizer is open, or a model was cast without the optimizer's
  /// knowledge; ValueError if two optimizers share a parameter.
  void prepare();
  /// Instead of prepare(), after the backward, or several, whose losses the current scale has
  /// scaled: the grads that there are are theirs. Throws like prepare(), and if there are grads of
  /// an earlier backward, unscaled by now.
  void take_grads();
  /// Restores the grads that prepare() set aside.
  void cancel();
  /// Unscales, checks and updates, or delays that. Throws RuntimeError, and cancels, if there are
  /// grads, but not of the scaled loss.
  void finish();
  /// After finish(), about what the program may not have meant; empty if there is nothing.
  const char* warning() const;

 private:
  /// The fate of the scaled loss, which its hook notes.
  struct Use {
    std::atomic<bool> was_used{false};   ///< it had a backward
    std::atomic<bool> has_ended{false};  ///< grads of a later one would stay scaled
  };
  /// The end of a backward that may be one of all ranks.
  struct End {
    at::Tensor found_inf;
    Grads::Report of_all;  ///< ranks
    Grads::Report here;    ///< of this rank alone
  };

  static void note_use(Use& use);
  void check_apart() const;
  void open(bool takes_grads);
  void unscale_others();
  End end_all(bool moves_scale);
  End agreed(const End& end, const ScaleSnapshot& by, const DynamicScale* moved,
             const at::Tensor& loss) const;
  void report(OptimizerState& state, const End& end, bool skips) const;
  void tell_sharers(const OptimizerState& state, const End& end) const;
  void close();
  void note_scaled_loss() const;

  States states_;
  States others_;  ///< of this thread; grads that it leaves their parameters are stray
  LossScaler& scaler_;
  BackwardOptions options_;
  bool is_needed_;
  std::shared_ptr<Use> use_;  ///< null if that is not known
  /// The scale of this backward: another one may update the scaler's before finish().
  std::shared_ptr<const ScaleSnapshot> scaled_by_;
  at::Tensor loss_;  ///< scaled; undefined unless a scalar on the device
  bool is_open_ = false;
  bool had_graphs_ = false;  ///< of its grads, which unscaling drops
};

}  // namespace torchamp::core
