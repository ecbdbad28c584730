// The masters of one optimizer, or of several that share a parameter, with their grads.
#pragma once

#include <torchamp/detail/master_grads.h>
#include <torchamp/detail/master_weights.h>
#include <torchamp/detail/stray_grads.h>

#include <vector>

namespace torchamp::core {

class OptimizerState;

/// The state shared by the optimizers that step one set of parameters.
class TORCHAMP_API Masters {
 public:
  Masters() : grads(weights), strays(weights) {}
  Masters(const Masters&) = delete;
  Masters& operator=(const Masters&) = delete;

  /// As MasterWeights::track().
  at::Tensor track(const at::Tensor& model_param, const at::Tensor& master = {});
  /// Before MasterWeights::release(): makes the masters what the model holds, in float32. Throws
  /// RuntimeError in a backward of one of the optimizers, and if a parameter changed its dtype.
  void prepare_release();

  MasterWeights weights;               ///< the parameters and their masters
  MasterGrads grads;                   ///< their grads
  StrayGrads strays;                   ///< those that are to be in no step
  std::vector<OptimizerState*> users;  ///< the optimizers that step them
};

}  // namespace torchamp::core
