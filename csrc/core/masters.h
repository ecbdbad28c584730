// The parameters with masters of one initialize.
#pragma once

#include "core/param.h"

namespace torchamp::core {

/// Keeps them, for as long as the program keeps the model's tensor: also those that no optimizer
/// steps at the moment.
class TORCHAMP_API Masters {
 public:
  /// From now on, steps adopt what was written to the model, or to masters, bypassing PyTorch's
  /// version counters, as through `.data`.
  void adopt_data_writes();
  /// Whether they do.
  bool adopts_data_writes() const { return adopts_data_writes_; }

  /// The Param of a tensor, which is made if there is none. `master`: the one that it gets;
  /// undefined: a new one, if `makes_master` and it has 16 bits, or none.
  std::shared_ptr<Param> param_of(const at::Tensor& tensor, at::Tensor master, bool makes_master);

  /// Drops those of tensors that the program has dropped.
  void forget_gone();

  /// Makes the masters what the model holds, in float32.
  void prepare_release() const;
  /// Gives their memory to the model's parameters, which become float32, without grads.
  void give_back();

 private:
  ParamList params_;
  bool adopts_data_writes_ = false;
};

}  // namespace torchamp::core
