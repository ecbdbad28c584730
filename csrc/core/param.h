// One parameter: the model's tensor, the one that an optimizer steps for it, and its grad.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/scale_snapshot.h"

namespace torchamp::core {

class OptimizerState;

/// A tensor as it was: which one, and in which version. Writes that bypass version counters
/// (`.data`, numpy) do not change it.
class TORCHAMP_API Mark {
 public:
  /// Marks no tensor.
  Mark() = default;
  explicit Mark(const at::Tensor& tensor);
  /// Whether `now` is that tensor, whatever has been written to it; or none, as then.
  bool is_same(const at::Tensor& now) const;
  /// Whether `now` is that tensor, and nothing has been written to it.
  bool is_unchanged(const at::Tensor& now) const;

 private:
  /// Weak: it keeps the address from being used again, but not the memory.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_{
      at::Tensor().getIntrusivePtr()};
  uint32_t version_ = 0;
};

/// Where a parameter's grad is, and whether it is unscaled. docs/grads.md has the rule.
enum class GradState : uint8_t {
  kNone,     ///< no backward has contributed
  kOpen,     ///< an open backward makes it
  kScaled,   ///< in the model, still to be unscaled by a later backward
  kChecked,  ///< in the model, checked; the step unscales it
  kUnscaled  ///< what the step uses: in the model, and for the master
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

/// A parameter's grad. A value: an open backward keeps a copy, and an exception restores it.
struct TORCHAMP_API Grad {
  GradState state = GradState::kNone;
  /// The model's grad as torchamp left it, also the one that the last step has used.
  Mark left;
  /// kUnscaled: what the step uses, if there is a master. kScaled: the sum of earlier backwards.
  at::Tensor unscaled;
  std::shared_ptr<const Scaling> scaling;  ///< kScaled

  /// The one function that changes `state`.
  void move(GradState to);
};

/// A parameter that one optimizer steps, or several if it has no master. It holds both tensors.
struct TORCHAMP_API Param {
  /// `master`: a float32 tensor of the model's sizes, or the model's itself.
  Param(at::Tensor model, at::Tensor master);
  ~Param();
  Param(const Param&) = delete;
  Param& operator=(const Param&) = delete;

  /// Whether the optimizer steps another tensor than the model's.
  bool has_master() const { return !model.is_same(master); }
  /// Whether backwards before the open one have, since grads were zeroed.
  bool has_contributed() const {
    return (grad.state == GradState::kOpen ? before : grad).state != GradState::kNone;
  }
  /// The model's grad.
  at::Tensor& model_grad() const { return model.mutable_grad(); }

  /// Copies the model's to the master if it was written from outside (a broadcast, a load), in a
  /// way that PyTorch counts. Throws RuntimeError if it changed its dtype or device.
  void follow_model();
  /// Whether the model was written from outside since it agreed with the master.
  bool is_model_written() const { return has_master() && !is_as_agreed(); }
  /// Whether the master was written from outside, and the model was not.
  bool is_master_ahead() const;
  /// Records that model and master agree.
  void mark_synced();
  /// In float32: the master's elements where the model's equal them, rounded; elsewhere the
  /// model's, which were written bypassing its version counter, for example through `.data`. After
  /// watch_data_writes(), all of the master's if the model was not written.
  at::Tensor value() const;
  /// From now on, a hash of the model's bits tells such writes to it from those to the master.
  void watch_data_writes();
  /// Sets the master to `value`, of any floating dtype. Does not write the model.
  void set_master(const at::Tensor& value);
  /// Sets the master's elements to those of `value`, float32, where the model's equal these,
  /// rounded; elsewhere to value()'s.
  void set_master_where_held(const at::Tensor& value);
  /// Whether the model's equals the master, rounded. Waits for the device.
  bool is_rounded_master() const;
  /// Sets the master to value(). Does not wait for the device.
  void adopt_data_writes();
  /// master = model, whatever the version counters say.
  void overwrite_master();
  /// Throws RuntimeError if the model's has changed its dtype without torchamp's knowledge.
  void check_dtype() const;

  const at::Tensor model;
  const at::Tensor master;
  std::vector<OptimizerState*> users;  ///< who step it; one at most if it has a master

  Grad grad;
  Grad before;             ///< kOpen: as the backward found it
  at::Tensor before_grad;  ///< kOpen: the model's grad then
  Mark stray;              ///< the model's grad as a scale_loss without its optimizer left it
  bool is_stray = false;   ///< `stray` is of a grad that is still to be zeroed
  at::Tensor refused;      ///< not 0: a step has skipped the grad, which no later one may use

 private:
  /// A pair when the two last agreed.
  struct Agreed {
    uint32_t model_version;
    uint32_t master_version;
    const void* model_data;
  };

  Agreed look() const;
  bool is_as_agreed() const;
  at::Tensor is_hash_as_agreed() const;
  void check_unchanged() const;

  at::ScalarType dtype_;
  Agreed agreed_;
  at::Tensor agreed_hash_;  ///< of the model then; undefined unless data writes are watched
};

using ParamList = std::vector<std::shared_ptr<Param>>;

/// The float32 master of a parameter that is about to be cast. It adopts the float32 memory, so no
/// precision is lost. Call this, then give the parameter low-precision data.
TORCHAMP_API at::Tensor make_master(const at::Tensor& model_param);

/// The Param of a tensor of the model or of a master, which all of the process share; null if
/// nobody steps it.
TORCHAMP_API std::shared_ptr<Param> param_of(const at::Tensor& tensor);
/// The Param of the two, which is made if there is none.
std::shared_ptr<Param> make_param(const at::Tensor& model, const at::Tensor& master);

/// Synchronizes models and masters where one was written from outside: follow_model(), else the
/// masters that were written are copied to the models, in one launch.
TORCHAMP_API void refresh(const ParamList& params);
/// For readers of the model: copies the masters that were written from outside, in a way that
/// PyTorch counts, where the model was not.
TORCHAMP_API void publish_masters(const ParamList& params);
/// The value that a tensor of a model stands for: a float32 copy if it has 16 bits, of its master
/// if it has one; else the tensor itself.
TORCHAMP_API at::Tensor float32_of(const at::Tensor& tensor);
/// model = master, rounded; after a step.
TORCHAMP_API void copy_to_model(const ParamList& params);
/// Gives the model's parameters their masters' memory: they become float32, without grads.
TORCHAMP_API void give_masters_back(const ParamList& params);

}  // namespace torchamp::core
