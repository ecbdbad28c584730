// Stage 3: float32 masters of 16-bit parameters.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchamp/detail/export.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace torchamp {

/// Parameters, each with the tensor that an optimizer steps: a float32 master of its own, or the
/// parameter itself where there are no masters (then "master" below means the parameter).
class TORCHAMP_API MasterWeights {
 public:
  /// Tracks `model_param` and returns its master: `master`, which must be float32 and of its sizes,
  /// or if undefined the parameter itself. A parameter that is tracked already keeps the master it
  /// has.
  at::Tensor track(const at::Tensor& model_param, const at::Tensor& master = {});

  /// Makes the float32 master of a parameter that is about to be cast: takes over its float32
  /// memory, so nothing of its precision is lost. Call this, then give the parameter low-precision
  /// data, then track() both.
  static at::Tensor make_master(const at::Tensor& model_param);

  /// What is tracked, in the order of track().
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
  /// Where each of `master_params` is in master_params().
  std::vector<size_t> indices_of(const std::vector<at::Tensor>& master_params) const;

  /// Keeps masters as the int16 low bits that the model's 16 bits lack: 2 bytes a parameter instead
  /// of 4, and the same numbers (math/rounding.h has the exceptions). master_params() hold NaN
  /// meanwhile.
  void split();
  /// Whether some masters are kept so.
  bool is_split() const { return !low_bits_.empty(); }
  /// Makes split masters float32 again.
  void reconstruct();
  /// What a fused step takes for the masters at `indices`: low bits, or the masters; empty where no
  /// master is split.
  std::vector<at::Tensor> stepped_params(const std::vector<size_t>& indices) const;

  /// The master's value: a copy in float32. Undefined for a parameter that is not tracked.
  at::Tensor master_value(const at::Tensor& model_param) const;
  /// Makes `value`, of any floating dtype, the master's value.
  void set_master_value(const at::Tensor& model_param, const at::Tensor& value);

  /// Brings the two sides together where one was written from outside: a model parameter that was
  /// written (a broadcast, a load) becomes the master's new value, else a master that was stepped
  /// becomes the model's. Writes that bypass version counters (`.data`, numpy) are not seen;
  /// force_refresh() is for those. Returns whether a master was stepped from outside.
  /// Throws if a model parameter changed its dtype, which torch::load and model.half() do.
  bool refresh();
  /// master = float(model), whatever the counters say.
  void force_refresh();
  /// model = master, rounded; after a step.
  void copy_to_model();
  /// The same without telling autograd, for when masters may or may not have been stepped: if they
  /// were not, nothing changes for a backward that is still to come.
  void recopy_to_model();
  /// Takes note that model and masters agree.
  void mark_synced();
  /// The same for one parameter, if it is tracked.
  void mark_synced(const at::Tensor& model_param);
  /// Whether the model's parameter is its master, rounded. Waits for the device.
  bool is_rounded_master(const at::Tensor& model_param) const;
  /// In float32, the master's elements where the model still holds them, rounded; elsewhere the
  /// model's, which were written past its version counter, through `.data` say. Undefined for a
  /// parameter that is not tracked.
  at::Tensor held_value(const at::Tensor& model_param) const;
  /// Makes held_value() the master's, for every parameter. Waits for no device.
  void adopt_data_writes();

 private:
  /// What was seen of a pair when the two sides last agreed.
  struct Seen {
    uint32_t model_version;
    uint32_t master_version;
    const void* model_data;
  };

  bool is_split(size_t i) const { return i < low_bits_.size() && low_bits_[i].defined(); }
  void adopt_model(size_t i);
  bool holds_master(size_t i) const;
  Seen look(size_t i) const;
  void check_unchanged(size_t i) const;

  std::vector<at::Tensor> model_params_;
  std::vector<at::Tensor> master_params_;
  std::vector<at::ScalarType> model_dtypes_;
  std::vector<Seen> seen_;
  std::vector<size_t> separate_;  ///< indices of the parameters that have a master of their own
  std::unordered_map<const c10::TensorImpl*, size_t> index_;  ///< by model parameter
  std::unordered_map<const c10::TensorImpl*, size_t> master_index_;
  std::vector<at::Tensor> low_bits_;  ///< of split masters; undefined for others
};

}  // namespace torchamp
