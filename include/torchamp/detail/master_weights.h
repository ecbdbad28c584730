// Stage 3: float32 masters of 16-bit parameters.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace torchamp {

/// Parameters, each with the tensor that an optimizer steps: a separate float32 master, or the
/// parameter itself if there are no masters (then "master" below means the parameter).
class TORCHAMP_API MasterWeights {
 public:
  /// Tracks `model_param` and returns its master: `master`, which must be float32 and of its sizes,
  /// or if undefined the parameter itself. A parameter that is tracked already keeps its
  /// master.
  at::Tensor track(const at::Tensor& model_param, const at::Tensor& master = {});

  /// Creates the float32 master of a parameter that is about to be cast. It adopts the float32
  /// memory, so no precision is lost. Call this, then give the parameter low-precision
  /// data, then track() both.
  static at::Tensor make_master(const at::Tensor& model_param);

  /// The tracked parameters, in the order of track().
  const std::vector<at::Tensor>& model_params() const { return model_params_; }
  /// The masters of model_params(), in their order.
  const std::vector<at::Tensor>& master_params() const { return master_params_; }
  /// The number of both.
  size_t size() const { return model_params_.size(); }
  /// The master of `model_param`, undefined if it is not tracked.
  at::Tensor master_of(const at::Tensor& model_param) const;
  /// Whether any parameter has a master other than itself.
  bool has_masters() const { return !separate_.empty(); }
  /// Whether model_params()[i] has one.
  bool is_separate(size_t i) const { return !model_params_[i].is_same(master_params_[i]); }
  /// The indices of those.
  const std::vector<size_t>& separate() const { return separate_; }
  /// The index of each of `master_params` in master_params().
  std::vector<size_t> indices_of(const std::vector<at::Tensor>& master_params) const;

  /// The master's value: a copy in float32. Undefined for a parameter that is not tracked.
  at::Tensor master_value(const at::Tensor& model_param) const;
  /// Sets the master's value to `value`, of any floating dtype.
  void set_master_value(const at::Tensor& model_param, const at::Tensor& value);

  /// Synchronizes model and masters if one was written from outside: a model parameter that was
  /// written (a broadcast, a load) is copied to the master, else a master that was stepped is
  /// copied to the model. Writes that bypass version counters (`.data`, numpy) are not detected;
  /// force_refresh() is for those. Returns whether a master was stepped from outside.
  /// Throws if a model parameter changed its dtype, which torch::load and model.half() do; of those
  /// without a separate master, only if torch::load did.
  bool refresh();
  /// master = float(model), regardless of the version counters.
  void force_refresh();
  /// model = master, rounded; after a step.
  void copy_to_model();
  /// The same without changing version counters, for masters that may or may not have been stepped:
  /// if they were not, a later backward is not affected.
  void recopy_to_model();
  /// Records that model and masters agree.
  void mark_synced();
  /// The same for one parameter, if it is tracked.
  void mark_synced(const at::Tensor& model_param);
  /// Whether the model's parameter equals its master, rounded. Waits for the device.
  bool is_rounded_master(const at::Tensor& model_param) const;
  /// In float32: the master's elements where the model's equal them, rounded; elsewhere the
  /// model's, which were written bypassing its version counter, for example through `.data`.
  /// Undefined for a parameter that is not tracked.
  at::Tensor held_value(const at::Tensor& model_param) const;
  /// Sets the master's elements to those of `value`, float32, where the model's equal these,
  /// rounded; elsewhere to held_value()'s. Does not write the model.
  void adopt_where_held(const at::Tensor& model_param, const at::Tensor& value);
  /// Sets every master to its held_value(). Does not wait for the device.
  void adopt_data_writes();
  /// Gives the model's parameters their masters' memory: they become float32, without grads.
  void release();

 private:
  /// The state of a pair when the two last agreed.
  struct Seen {
    uint32_t model_version;
    uint32_t master_version;
    const void* model_data;
  };

  void adopt_model(size_t i);
  void adopt_writes(size_t i);
  bool holds_master(size_t i) const;
  Seen look(size_t i) const;
  void check_unchanged(size_t i) const;
  void check_dtype(size_t i) const;
  void check_not_misread() const;

  std::vector<at::Tensor> model_params_;
  std::vector<at::Tensor> master_params_;
  std::vector<at::ScalarType> model_dtypes_;
  std::vector<Seen> seen_;
  std::vector<size_t> separate_;  ///< indices of the parameters that have a separate master
  std::unordered_map<const c10::TensorImpl*, size_t> index_;  ///< by model parameter
  std::unordered_map<const c10::TensorImpl*, size_t> master_index_;
};

}  // namespace torchamp
