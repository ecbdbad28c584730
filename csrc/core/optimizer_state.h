// OptimizerState: the parameters that one optimizer steps, and what its next step needs. The
// optimizers of both languages have one.
#pragma once

#include <torchamp/loss_scaler.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "core/grads.h"
#include "core/masters.h"
#include "core/observer.h"

namespace torchamp::core {

/// What to do where two optimizers are to step one parameter.
constexpr const char* kOneOwner =
    "make one optimizer with two groups, or train in phases: amp.release(model), then initialize "
    "with the other optimizer";

/// Throws ValueError, which names `function`, if an optimizer steps the param's master.
void check_unowned(const char* function, const Param& param);

/// What an optimizer's program may not have meant. Each text is told once.
class Warnings {
 public:
  /// At a new step, or look at the groups.
  void clear() { last_.clear(); }
  void add(const std::string& text) {
    if (told_.insert(text).second) last_ = text;
  }
  /// The last since clear() that is new; empty if there is none.
  const std::string& last() const { return last_; }

 private:
  std::string last_;
  std::unordered_set<std::string> told_;
};

/// The parameters that one optimizer steps, the grads that its next step uses, and the overflows
/// that skip it. docs/grads.md is the specification.
class TORCHAMP_API OptimizerState : public std::enable_shared_from_this<OptimizerState> {
 public:
  /// `masters`: those of its initialize; null: its own.
  explicit OptimizerState(std::shared_ptr<Masters> masters = nullptr,
                          std::shared_ptr<Observer> observer = nullptr);
  ~OptimizerState();
  OptimizerState(const OptimizerState&) = delete;
  OptimizerState& operator=(const OptimizerState&) = delete;

  /// @name What it steps
  /// @{

  /// In the order of the optimizer's groups.
  const ParamList& params() const { return params_; }
  Masters& masters() const { return *masters_; }
  /// Whether it is one of the param's users.
  bool steps(const Param& param) const;
  /// Whether `held` is params()[i], with the master that it is to have.
  bool steps_at(size_t i, const at::Tensor& held) const {
    return i < params_.size() && params_[i]->model.is_same(held) && has_its_master(*params_[i]);
  }
  /// Steps `param`, a tensor of the model, from now on, unless it does. `master`: the one that it
  /// gets; undefined: the one that it has, or a new one if masters are made and it has 16 bits, or
  /// none. Throws ValueError, which names `function`, if another optimizer steps the master.
  void add(const char* function, const at::Tensor& param, const at::Tensor& master = {});
  /// Steps `held`, the groups' tensors, from now on, in that order. The overflows of others skip
  /// nothing, unless other optimizers or ranks count on the skip. Throws ValueError, which names
  /// `function`, and changes nothing, for a tensor that comes twice, or whose master another
  /// optimizer steps.
  void follow(const char* function, at::TensorList held);
  /// Steps no longer what is not in `held`, the groups' tensors, so that others may.
  void let_go(at::TensorList held);
  /// Throws RuntimeError in a backward.
  void check_releasable() const;

  /// @}
  /// @name The next step
  /// @{

  /// Whether a Backward that was given it is open.
  bool is_in_backward() const { return is_in_backward_; }
  void set_in_backward(bool is_in_backward) { is_in_backward_ = is_in_backward; }
  /// After one that has scaled its loss.
  void note_scaled_loss();
  /// May be null.
  Observer* observer() const { return observer_.get(); }
  /// The grads that it uses.
  Grads& grads() { return grads_; }
  const Grads& grads() const { return grads_; }
  /// What skips it.
  Overflows& overflows() { return overflows_; }
  const Overflows& overflows() const { return overflows_; }
  void clear_overflows();

  /// Brings the grads' states up to date: drops what a step has skipped, and reads what the program
  /// has done to the grads.
  void update_grads();
  /// Does update_grads(), for clipping. Throws RuntimeError, which names `function`, while grads
  /// are scaled, also by a backward that was not given the optimizer.
  void check_unscaled(const char* function);
  /// Before a step. Does update_grads(), and finds what to warn of. Throws RuntimeError, which
  /// names `function`, in a backward, and while grads are scaled or stray. needs_scale: they are
  /// to come from a scaled loss.
  void begin_step(const char* function, bool needs_scale);
  /// Ends a step, taken or skipped, whose losses are scaled by `scalers`: the grads are used, and
  /// what a skipped step has refused is given up.
  void end_step(const std::vector<LossScaler*>& scalers, std::optional<bool> overflowed = {});
  /// After the optimizer's zero_grad() has zeroed all grads, which does not reach those that are
  /// set aside, nor overflows. Zeros that it has left in grads stay.
  void note_zeroed();
  /// After the model's zero_grad() has zeroed the grads of some parameters, each once.
  void note_zeroed(const std::vector<at::Tensor>& model_params);
  /// Unscales grads now, and from now on in every backward; masters show theirs, float32, from now
  /// on. Masters require grads where the model's parameters do.
  void show_grads();

  /// @}

  /// A warning about what the program may not have meant, found by the last step or look at the
  /// groups, and by none before; empty if there is none.
  const std::string& warning() const { return warnings_.last(); }

  /// The others of this thread that are not among `given`.
  static std::vector<std::shared_ptr<OptimizerState>> others_than(
      const std::vector<std::shared_ptr<OptimizerState>>& given);

 private:
  bool has_its_master(const Param& param) const {
    return param.has_master() || !masters_->makes_master_of(param.model);
  }
  void keep(const std::vector<int64_t>& kept);
  void end_zeroing(bool all);
  void forget_backwards();

  ParamList params_;
  std::shared_ptr<Masters> masters_;
  Overflows overflows_;
  Grads grads_{params_, overflows_};
  bool is_in_backward_ = false;
  /// What the last scaled loss left since it was made; kNone: there was none.
  enum class ScaledLoss { kNone, kWithoutGrads, kWithGrads } scaled_loss_ = ScaledLoss::kNone;
  bool has_stepped_ = false;  ///< or has begun to
  std::thread::id thread_;    ///< that used it last
  Warnings warnings_;
  std::shared_ptr<Observer> observer_;  ///< may be null
};

}  // namespace torchamp::core
