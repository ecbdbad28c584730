// A parameter's grad: where it is, and what it is still to be divided by. docs/grads.md has the
// rule.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "ops/autograd_meta.h"
#include "scaler/scale_snapshot.h"

namespace torchamp::core {

/// Where a parameter's grad is, and whether it is unscaled.
enum class GradState : uint8_t {
  kNone,     ///< no backward has contributed
  kOpen,     ///< an open backward makes it
  kScaled,   ///< in the model, still to be unscaled by a later backward
  kChecked,  ///< in the model, checked; the step unscales it
  kUnscaled  ///< in the model, what the step uses
};
/// Their number.
constexpr size_t kGradStates = 5;

/// Whether a grad may change from one state to the other. docs/grads.md has the same table.
TORCHAMP_API bool can_move(GradState from, GradState to);
/// The state's name in docs/grads.md.
TORCHAMP_API const char* name_of(GradState state);

/// The loss scale of a backward whose grads stay scaled.
struct Scaling {
  std::shared_ptr<const ScaleSnapshot> by;
  std::shared_ptr<DeferredOverflow> overflow;  ///< where theirs belongs; null: a fixed scale
  at::Tensor loss;                             ///< scaled; may be undefined
};

/// The grad of one parameter, which the model shows. Its functions alone change its state.
class TORCHAMP_API Grad {
 public:
  /// `master`: the parameter's, or `model` itself.
  Grad(at::Tensor model, at::Tensor master);

  GradState state() const { return state_; }
  bool is_open() const { return state_ == GradState::kOpen; }
  /// Whether the next step uses it: it is kUnscaled or kChecked, or of a parameter without master.
  bool is_usable() const;
  /// Whether backwards before the open one have contributed since grads were zeroed.
  bool has_contributed() const;
  /// kScaled: by what; else null.
  const std::shared_ptr<const Scaling>& scaling() const { return held_.scaling; }
  /// Whether the model's is another than torchamp has left, or was written since.
  bool is_new() const;
  /// Whether the model's is the one that torchamp has left, perhaps written since.
  bool is_left() const;

  /// @name A backward
  /// @{

  /// Sets the grads of earlier backwards aside. Those that are kScaled stay where they are: the
  /// backward adds to them, and DistributedDataParallel reduces the sum.
  void open();
  /// Opens it with the grads that there are as those of the open backward; kScaled: of its own.
  void take();
  /// Puts back what opening has found.
  void cancel();
  /// The sum of what the open backward has left the model and the master, still scaled.
  at::Tensor scaled() const;
  /// The unscaled sum of the backwards before the open one.
  const at::Tensor& sum_before() const;
  /// Whether what the open backward has found can stay in the model until a step unscales it.
  bool can_stay() const;
  /// Ends the open backward, of `scaling`, whose grads stay scaled.
  void delay(const std::shared_ptr<const Scaling>& scaling);
  /// Ends it: the step unscales them.
  void check();
  /// Ends it, or kChecked, or takes over what the program has put there: `sum` is what the step
  /// uses. `shows`: the master shows it too.
  void finish(at::Tensor sum, bool shows);

  /// @}
  /// @name The program and its steps
  /// @{

  /// Reads what the program has done to the grads of model and master. Returns whether it has
  /// zeroed them.
  bool notice(bool shows);
  /// The program has zeroed them.
  void zero();
  /// A step has used it, or, unless `refused` is undefined or 0, has skipped it.
  void use(const at::Tensor& refused);
  /// Drops what a skipped step has left, unless the program has put another in its place. Throws
  /// RuntimeError if a backward outside of scale_loss has added to what is not finite.
  void discard_refused();

  /// @}
  /// @name Grads of backwards that were not given the optimizer
  /// @{

  /// Remembers what there is before such a backward.
  void watch_stray();
  /// After it: it may have left the model's a scaled grad.
  void note_stray();
  /// Whether the grad has contributions of one.
  bool has_stray() const;

  /// @}

 private:
  /// What counts of the backwards before the open one.
  struct Held {
    /// The model's grad as torchamp left it, also the one that the last step has used.
    Mark left;
    at::Tensor earlier;                      ///< kScaled: the unscaled sum of earlier backwards
    std::shared_ptr<const Scaling> scaling;  ///< kScaled
    bool is_shown = false;                   ///< kUnscaled: the master shows it too
    bool is_scaled = false;                  ///< kNone: a step has used `left`, still scaled
  };
  /// kOpen: what opening has found, and where it has left model and master grads, those.
  struct Before {
    GradState state = GradState::kNone;
    at::Tensor model_grad, master_grad;
    Mark model_left, master_left;
  };

  /// What a backward that was not given the optimizer has left the model.
  enum class Stray : uint8_t {
    kNone,
    kAlone,  ///< a grad, which is stray as long as nobody writes it
    kAmong   ///< one to which a backward of the optimizer has added since
  };

  void move(GradState to);
  void note_left(const at::Tensor& grad);
  bool notice_model();
  bool notice_both(bool shows);
  bool has_master() const { return !model_.is_same(master_); }
  at::Tensor& model_grad() const { return model_.mutable_grad(); }

  const at::Tensor model_, master_;
  GradState state_ = GradState::kNone;
  Stray stray_ = Stray::kNone;
  Mark watched_;  ///< the model's grad before a backward without the optimizer; kAlone: after it
  Held held_;
  std::optional<Before> before_;
  at::Tensor refused_;  ///< not 0: a step has skipped the grad, which no later one may use
};

/// Lets programs assign the model's `.grad` in the dtype that it has, where that differs from the
/// parameter's; without a grad, in the parameter's own. Before torch 2.11 nothing is to be done.
void set_grad_dtype(const at::Tensor& model);

/// `tensor.set_data(data)`. The node that accumulates the tensor's grad stays, with its hooks, also
/// where the dtype changes.
TORCHAMP_API void set_data(const at::Tensor& tensor, const at::Tensor& data);

}  // namespace torchamp::core
