// One parameter: the model's tensor, the one that an optimizer steps for it, and its grad.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/grad.h"

namespace torchamp::core {

class OptimizerState;

/// A parameter that one optimizer steps, or several if it has no master. It holds both tensors.
struct TORCHAMP_API Param {
  /// `master`: a float32 tensor of the model's sizes, or the model's itself.
  Param(at::Tensor model, at::Tensor master);
  ~Param();
  Param(const Param&) = delete;
  Param& operator=(const Param&) = delete;

  /// Whether the optimizer steps another tensor than the model's.
  bool has_master() const { return !model.is_same(master); }

  /// Whether only this holds the model's.
  bool is_gone() const;

  /// Copies the model's to the master if it was written from outside (a broadcast, a load), in a
  /// way that PyTorch counts, after check_model().
  void follow_model();
  /// Throws RuntimeError if the model's was written from outside and has changed its dtype or
  /// device.
  void check_model() const;
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
  /// For state dicts: the master, where the model's equals it, rounded; else value(). Waits for the
  /// device.
  at::Tensor entry();
  /// Copies to the model what was written to the last entry() bypassing its version counter, unless
  /// the model was written too.
  void publish_entry();
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
  bool is_borrowed = false;  ///< the model has its master's contents: an optimizer is at work

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
  at::Tensor agreed_hash_;   ///< of the model then; undefined unless data writes are watched
  bool is_watched_ = false;  ///< they are, for good, and not for the last entry() alone
};

using ParamList = std::vector<std::shared_ptr<Param>>;

/// The float32 master of a parameter that is about to be cast. It adopts the float32 memory, so no
/// precision is lost. Call this, then give the parameter low-precision data.
TORCHAMP_API at::Tensor make_master(const at::Tensor& model_param);

/// The Param of a tensor of the model or of a master, which all of the process share; null if
/// nobody has stepped it.
TORCHAMP_API std::shared_ptr<Param> param_of(const at::Tensor& tensor);
/// The Param of the two, which is made if there is none.
std::shared_ptr<Param> make_param(const at::Tensor& model, const at::Tensor& master);

/// The model's tensors.
TORCHAMP_API std::vector<at::Tensor> models_of(const ParamList& params);
/// The tensors that are stepped for them: masters, and the parameters that have none.
TORCHAMP_API std::vector<at::Tensor> masters_of(const ParamList& params);
/// Whether any has a master.
TORCHAMP_API bool has_masters(const ParamList& params);

/// Synchronizes models and masters where one was written from outside: follow_model(), else the
/// masters that were written are copied to the models, in one launch.
TORCHAMP_API void refresh(const ParamList& params);
/// For readers of the model: copies the masters that were written from outside, in a way that
/// PyTorch counts, where the model was not.
TORCHAMP_API void publish_masters(const ParamList& params);
void check_and_publish(const ParamList& params);
/// Whether optimizers step masters for any of the tensors of a model.
TORCHAMP_API bool have_masters(at::TensorList tensors);
/// What an optimizer steps for a parameter: its master if it has one, else the tensor itself.
TORCHAMP_API at::Tensor stepped_for(const at::Tensor& param);
/// model = master, rounded; after a step.
TORCHAMP_API void copy_to_model(const ParamList& params);

}  // namespace torchamp::core
