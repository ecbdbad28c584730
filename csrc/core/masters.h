// The parameters with masters of one initialize.
#pragma once

#include "core/param.h"

namespace torchamp::core {

/// Keeps them, for as long as the program keeps the model's tensor: also those that no optimizer
/// steps at the moment.
class TORCHAMP_API Masters {
 public:
  /// `makes_masters`: for 16-bit parameters that have none.
  explicit Masters(bool makes_masters = false) : makes_masters_(makes_masters) {}
  /// From now on, steps adopt writes that PyTorch does not count, as through `.data`.
  void adopt_data_writes();
  /// Whether they do.
  bool adopts_data_writes() const { return adopts_data_writes_; }

  const ParamList& params() const { return params_; }
  /// Synchronizes masters and model of some, also of what was written through `.data` if steps
  /// adopt that.
  void bring_together(const ParamList& params) const;

  /// The Param of a tensor, which is made if there is none. `master`: the one that it gets;
  /// undefined: a new one, if masters are made and it has 16 bits, or none.
  std::shared_ptr<Param> param_of(const at::Tensor& tensor, at::Tensor master);
  /// Whether a parameter without a master gets one, perhaps since it was cast.
  bool makes_master_of(const at::Tensor& tensor) const {
    return makes_masters_ && c10::isReducedFloatingType(tensor.scalar_type());
  }
  /// Drops those of tensors that the program has dropped.
  void forget_gone();
  /// Makes the masters what the model holds, in float32.
  void prepare_release() const;
  /// Gives their memory to the model's parameters, which become float32, without grads.
  void give_back();

 private:
  ParamList params_;
  bool makes_masters_;
  bool adopts_data_writes_ = false;
};

}  // namespace torchamp::core
